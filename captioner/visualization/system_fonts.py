"""Fonts of the system, for the letters that DejaVu Sans lacks."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from matplotlib import font_manager

from captioner.log import logger
from captioner.visualization.typography import letters

_warn_once = lru_cache(maxsize=16)(logger.warning)


@lru_cache(maxsize=1024)
def font_with(characters: str) -> str | None:
    """Return the system's font file that has most of these characters; None if none has any."""
    wanted = {character for character in characters if character.isprintable()}
    files = sorted(
        font_manager.findSystemFonts(), key=lambda path: ("Bold" in path, "Serif" in path, path)
    )
    best = max(files, key=lambda path: len(wanted & letters(path)), default=None)
    if missing := wanted - (letters(best) if best else frozenset()):
        script = unicodedata.name(min(missing), "some").split()[0].capitalize()
        _warn_once(
            f"warning: no font on this machine has {script} letters, which are drawn as boxes; "
            "install one (on Debian and Ubuntu, fonts-noto-cjk or another of fonts-noto)"
        )
    return best if missing != wanted else None
