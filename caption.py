"""Caption photos: python caption.py PHOTO [PHOTO|FOLDER ...] --output DIR."""

from __future__ import annotations

import sys

from captioner.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["caption", *sys.argv[1:]]))
