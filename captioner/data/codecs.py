"""What Pillow needs for two formats: HEIC photos, which phones write, and damaged TIFF files."""

from __future__ import annotations

import ctypes
import functools
from typing import IO

from PIL import _imaging

HEIF_SUFFIXES = frozenset((".heic", ".heif", ".hif"))
_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis")


@functools.cache
def register_heif() -> bool:
    """Let Pillow open HEIC files if pillow-heif is installed, and return whether it is."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def is_heif(file: IO[bytes]) -> bool:
    """Return whether a file begins like a HEIC photo: an ISO file type box with its brands."""
    file.seek(0)
    head = file.read(64)
    file.seek(0)
    brands = head[8 : int.from_bytes(head[:4], "big")]
    return head[4:8] == b"ftyp" and any(
        brands[start : start + 4] in _BRANDS for start in range(0, len(brands), 4)
    )


@functools.cache
def silence_libtiff() -> None:
    """Keep libtiff from writing to standard error; Pillow raises what is wrong with a file.

    Where Pillow has libtiff inside its own library, as on Windows, this does nothing.
    """
    try:
        # Symbols are also searched in the libraries that Pillow's own is linked to.
        library = ctypes.CDLL(_imaging.__file__)
        for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
            setter = getattr(library, name)
            setter.argtypes, setter.restype = [ctypes.c_void_p], ctypes.c_void_p
            setter(None)
    except (OSError, AttributeError, TypeError):
        return
