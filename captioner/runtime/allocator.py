"""Reuse of freed memory without returning it to the kernel in between."""

from __future__ import annotations

import ctypes
import sys

# Of glibc's <malloc.h>.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8


def keep_freed_memory() -> bool:
    """Ask the C library to keep freed memory for this process; return whether it will.

    By default glibc maps every large block anew and unmaps it when it is freed, so the pages of
    each tensor fault in one by one (docs/performance.md has figures). It changes the whole process,
    so programs call it, the library does not. The process then goes on holding at least the
    most that it ever needed at once.
    Nothing is done with another C library, as on macOS or Windows.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl
        return False
    settings = {
        _MMAP_MAX: 0,  # large blocks too come from the heap,
        _TRIM_THRESHOLD: -1,  # which is never given back,
        _TOP_PAD: 64 * 2**20,  # grows by so much at once,
        _ARENA_MAX: 1,  # and is one for all threads: those of threads are unmapped when empty
    }
    return all(mallopt(name, value) for name, value in settings.items())
