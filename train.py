"""Train a captioner: python train.py --config configs/flickr8k_soft.yaml --data.root DIR."""

from __future__ import annotations

import sys

from captioner.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
