"""Commands and options that there are not, and the ones that were probably meant."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path

from captioner.log import printable

_PHOTOS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".heic")
# Commands and options of earlier versions, and what to do instead.
_REMOVED = {
    "shards": "train from the folder itself; tar files that it wrote are read from a disk",
    "caption --in-place": "--write html writes a copy of the page; move it over the page",
    "caption --max-length": "alternative texts have at most 125 characters",
    "doctor --json": "the lines begin with ok, -- or !!",
    "doctor --measure": "time captioner caption with --precision bfloat16 and without",
    "evaluate --captions": "results.json has them; captioner batch captions all photos",
    "evaluate --regions": "--objects takes masks, and boxes where there are none",
    "evaluate --removal": "--faithfulness always deletes cells from the grid",
    "serve --workers": "run several servers at ports of their own, behind nginx",
}


def unknown_command(word: str, commands: Sequence[str]) -> str:
    """Return a sentence on a word in the place of a command, with what was probably meant.

    >>> unknown_command("eval", ["caption", "evaluate"])
    "there is no command 'eval' (did you mean: captioner evaluate)"
    """
    if instead := _REMOVED.get(word):
        return f"captioner {word} is gone: {instead}"
    meant = get_close_matches(_plain(word), commands, n=1)
    if os.path.exists(word) or "://" in word or Path(word).suffix.lower() in _PHOTOS:
        meant = [f"caption {word}"]
    hint = f" (did you mean: captioner {meant[0]})" if meant else ""
    return printable(f"there is no command '{word}'{hint}")


def unknown_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> str | None:
    """Return a sentence on the words that are no options, None without any.

    Args:
        parser: The command's parser. Beginnings of options are left to it.
        words: The command's arguments.
    """
    options = [option for action in parser._actions for option in action.option_strings]
    # jsonargparse has an option for each section, too: --data, where --data.root is meant.
    sections = {option.partition(".")[0] for option in options if "." in option}
    known = [option for option in options if option not in sections]
    # Options by their last part: epochs is of --train.epochs.
    by_name = {_plain(each).rpartition(".")[2]: each for each in reversed(known)}
    sentences = []
    for word in takewhile(lambda word: word != "--", words):
        option = word.partition("=")[0]
        is_short = re.match("-[A-Za-z]", option)
        is_known = option.removesuffix("+") in known or (is_short and option[:2] in known)
        is_start = parser.allow_abbrev and any(each.startswith(option) for each in known)
        if is_known or is_start or not (is_short or option.startswith("--")):
            continue
        if instead := _REMOVED.get(f"{parser.prog.removeprefix('captioner ')} {option}"):
            sentences.append(f"{option} is gone: {instead}")
        else:
            name = _plain(option).rpartition(".")[2]
            meant = get_close_matches(name, by_name, n=1, cutoff=0.7)
            hint = f" (did you mean {by_name[meant[0]]}?)" if meant else ""
            sentences.append(f"there is no option {option}{hint}")
    return "; ".join(sentences) or None


def _plain(word: str) -> str:
    return word.strip("-").replace("_", "-").casefold()
