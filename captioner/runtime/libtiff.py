"""Keeps libtiff, which Pillow decodes TIFF files with, from writing to standard error itself."""

from __future__ import annotations

import ctypes
import functools

from PIL import _imaging


@functools.cache
def silence_libtiff() -> bool:
    """Take away libtiff's handlers of errors and warnings, and return whether that was possible.

    What is wrong with a file still reaches the caller as Pillow's exception. It is not possible
    where Pillow has libtiff inside its own library, as on Windows.
    """
    try:
        # Symbols are also searched in the libraries that Pillow's own is linked to.
        library = ctypes.CDLL(_imaging.__file__)
        for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
            setter = getattr(library, name)
            setter.argtypes, setter.restype = [ctypes.c_void_p], ctypes.c_void_p
            setter(None)
    except (OSError, AttributeError, TypeError):
        return False
    return True
