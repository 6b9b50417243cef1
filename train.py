"""Train a captioner: python train.py --config configs/flickr8k_soft.yaml --data.root DIR."""

from __future__ import annotations

import sys

from captioner.cli.train import main

if __name__ == "__main__":
    sys.exit(main())
