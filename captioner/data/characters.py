"""Characters as tokens, for scripts that are written without spaces between words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from captioner.data.vocabulary import UNSPACED, WordTokenizer, is_mark, is_unspaced

_BETWEEN_UNSPACED = re.compile(rf"([{UNSPACED}][^\w\s]*) (?=[{UNSPACED}])")
_RUN_OF_UNSPACED = re.compile(rf"[{UNSPACED}]\W*[{UNSPACED}]")
_MAX_UNSPACED_SHARE = 0.05  # of tokens, above which `words` is the wrong tokenizer


class CharacterTokenizer(WordTokenizer):
    """Characters, with their marks, for scripts without spaces between words; words for others.

    >>> CharacterTokenizer().split("一只 Red 狗。")
    ['一', '只', 'red', '狗']
    >>> CharacterTokenizer().join(["一", "只", "red", "狗"])
    '一只 red 狗'
    """

    name = "characters"

    def split(self, text: str) -> list[str]:
        tokens: list[str] = []
        for word in super().split(text):
            for place, character in enumerate(word):
                unspaced = is_unspaced(character) or (bool(tokens) and is_unspaced(tokens[-1][0]))
                if place == 0 or (unspaced and not is_mark(character)):
                    tokens.append(character)
                else:
                    tokens[-1] += character
        return [token for token in tokens if token not in ("'", "-")]

    def join(self, tokens: Sequence[str]) -> str:
        return _BETWEEN_UNSPACED.sub(r"\1", " ".join(tokens))


def unspaced_runs(texts: Iterable[str]) -> str | None:
    """Return a warning if `words` would take runs of a script without spaces for words."""
    tokens = runs = 0
    for text in texts:
        if text.isascii():
            tokens += len(text.split())
            continue
        words = WordTokenizer().split(text)
        tokens += len(words)
        runs += sum(_RUN_OF_UNSPACED.search(word) is not None for word in words)
    if runs <= _MAX_UNSPACED_SHARE * tokens:
        return None
    return (
        f"{runs} of {tokens} words of the captions are runs of a script without spaces "
        "between words, and each run would be one word; set data.tokenizer: characters"
    )
