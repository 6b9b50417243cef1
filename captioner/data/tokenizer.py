"""Tokenizers: text to tokens and back. A model folder names the one that its vocabulary is of."""

from __future__ import annotations

import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from captioner.registry import TOKENIZERS

_MARK = "\u0301"  # replaces every combining mark before matching: `re` has no class for marks
_LETTERS = rf"(?:[^\W_]{_MARK}*)+"
_WORD = re.compile(rf"{_LETTERS}(?:['’-]{_LETTERS})*")
# Scripts written without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Chinese, kana.
_UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"
    "\u2e80-\u2fdf\u3005-\u3007\u3031-\u3035\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_BETWEEN_UNSPACED = re.compile(rf"([{_UNSPACED}][^\w\s]*) (?=[{_UNSPACED}])")
_RUN_OF_UNSPACED = re.compile(rf"[{_UNSPACED}]\W*[{_UNSPACED}]")
_MAX_UNSPACED_SHARE = 0.05  # of tokens, above which `words` is the wrong tokenizer


class Tokenizer(ABC):
    """Splits captions into tokens and joins tokens into text; `captioner.registry` lists them.

    Attributes:
        name: Its name in recipes.
        is_learned: Whether tokens are learned from captions; then none of them is too rare to keep.
    """

    name: ClassVar[str]
    is_learned: ClassVar[bool] = False

    @abstractmethod
    def split(self, text: str) -> list[str]:
        """Split a text into tokens; a text without any gives an empty list."""

    def join(self, tokens: Sequence[str]) -> str:
        """Join tokens into the text that users read."""
        return " ".join(tokens)

    def word_starts(self, tokens: Sequence[str]) -> list[int]:
        """Return the places of the tokens that begin a word: all, unless tokens are pieces."""
        return list(range(len(tokens)))

    def fitted(self, captions: Iterable[str], *, min_count: int, max_size: int | None) -> Tokenizer:
        """Return the tokenizer for a model that is to be trained on these captions.

        Tokens rarer than `min_count`, or more than `max_size` (None: no limit), are not wanted.
        """
        return self

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the constructor, as plain values."""
        return {}

    def save(self, path: Path) -> None:
        """Write name and settings as JSON."""
        content = {"tokenizer": self.name, **self.settings()}
        path.write_text(json.dumps(content, ensure_ascii=False, indent=0), encoding="utf-8")


class WordTokenizer(Tokenizer):
    """Lower-case words: runs of letters and digits, with their marks, of the text in NFKC.

    Apostrophes and hyphens inside a word stay; all other punctuation goes, as in the scorers.

    >>> WordTokenizer().split("A man's t-shirt, \\"RED\\" & blue.")
    ['a', "man's", 't-shirt', 'red', 'blue']
    """

    name = "words"

    def split(self, text: str) -> list[str]:
        text = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
        shape = text
        if not text.isascii():
            shape = "".join(_MARK if _is_mark(character) else character for character in text)
        return [text[slice(*match.span())] for match in _WORD.finditer(shape)]


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
                if place == 0 or (unspaced and not _is_mark(character)):
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


def load_tokenizer(path: Path) -> Tokenizer:
    """Build the tokenizer that a `tokenizer.json` names; without the file, `words`."""
    if not path.exists():
        return WordTokenizer()
    content = json.loads(path.read_text(encoding="utf-8"))
    return TOKENIZERS[content.pop("tokenizer")](**content)


def _is_mark(character: str) -> bool:
    """Return whether a character belongs to the letter before it; variation selectors do not."""
    return unicodedata.category(character) in ("Mn", "Mc") and not "\ufe00" <= character <= "\ufe0f"


def begins_unspaced(character: str) -> bool:
    """Return whether a character is of a script without spaces, and no mark on another one."""
    return is_unspaced(character) and not _is_mark(character)


def is_unspaced(character: str) -> bool:
    """Return whether a character is of a script that is written without spaces between words."""
    return re.match(f"[{_UNSPACED}]", character) is not None
