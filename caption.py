"""Caption photos: python caption.py PHOTO [PHOTO|FOLDER ...] --output DIR."""

from __future__ import annotations

import sys

from captioner.cli.caption import main

if __name__ == "__main__":
    sys.exit(main())
