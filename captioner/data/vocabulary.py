"""The words that a model knows, as numbers, and the tokenizer that splits texts into them."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from captioner.registry import TOKENIZERS

PAD, START, END, UNKNOWN = "<pad>", "<start>", "<end>", "<unk>"
SPECIAL_TOKENS = (PAD, START, END, UNKNOWN)

_MARK = "\u0301"  # replaces every combining mark before matching: `re` has no class for marks
_LETTERS = rf"(?:[^\W_]{_MARK}*)+"
_WORD = re.compile(rf"{_LETTERS}(?:['’-]{_LETTERS})*")
# Scripts written without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Chinese, kana.
UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"
    "\u2e80-\u2fdf\u3005-\u3007\u3031-\u3035\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)


class Tokenizer:
    """Splits captions into tokens and joins tokens into text: lower-case words, unless overridden.

    Words are runs of letters and digits, with their marks, of the text in NFKC. Apostrophes and
    hyphens inside a word stay; all other punctuation goes, as in the scorers.

    Attributes:
        name: Its name in recipes.
        is_learned: Whether tokens are learned from captions; then none of them is too rare to keep.

    >>> Tokenizer().split("A man's t-shirt, \\"RED\\" & blue.")
    ['a', "man's", 't-shirt', 'red', 'blue']
    """

    name: ClassVar[str] = "words"
    is_learned: ClassVar[bool] = False

    def split(self, text: str) -> list[str]:
        """Split a text into tokens; a text without any gives an empty list."""
        text = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
        shape = text
        if not text.isascii():
            shape = "".join(_MARK if is_mark(character) else character for character in text)
        return [text[slice(*match.span())] for match in _WORD.finditer(shape)]

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


def load_tokenizer(path: Path) -> Tokenizer:
    """Build the tokenizer that a `tokenizer.json` names; without the file, `words`."""
    if not path.exists():
        return Tokenizer()
    content = json.loads(path.read_text(encoding="utf-8"))
    return TOKENIZERS[content.pop("tokenizer")](**content)


def is_mark(character: str) -> bool:
    """Return whether a character belongs to the letter before it; variation selectors do not."""
    return unicodedata.category(character) in ("Mn", "Mc") and not "\ufe00" <= character <= "\ufe0f"


def begins_unspaced(character: str) -> bool:
    """Return whether a character is of a script without spaces, and no mark on another one."""
    return is_unspaced(character) and not is_mark(character)


def is_unspaced(character: str) -> bool:
    """Return whether a character is of a script that is written without spaces between words."""
    return re.match(f"[{UNSPACED}]", character) is not None


class Vocabulary:
    """Tokens with their indices: the four special ones, then words by falling frequency.

    Only `end` and words are ever generated.
    """

    pad, start, end, unknown = range(len(SPECIAL_TOKENS))

    def __init__(self, words: Sequence[str], tokenizer: Tokenizer | None = None) -> None:
        self.tokenizer = tokenizer or Tokenizer()
        self.tokens = [*SPECIAL_TOKENS, *words]
        self._index = {token: index for index, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, word: str) -> bool:
        return self._index.get(word, 0) >= len(SPECIAL_TOKENS)

    @property
    def words(self) -> list[str]:
        """The tokens without the special ones."""
        return self.tokens[len(SPECIAL_TOKENS) :]

    @classmethod
    def build(
        cls,
        captions: Iterable[str],
        tokenizer: Tokenizer | None = None,
        *,
        min_count: int = 5,
        max_size: int | None = None,
    ) -> Vocabulary:
        """Collect the words of captions that occur `min_count` times, ties in alphabetical order.

        Only the `max_size` most frequent words are kept; None keeps all.
        """
        tokenizer = tokenizer or Tokenizer()
        counts = Counter(word for caption in captions for word in tokenizer.split(caption))
        # A learned tokenizer has a token of its own for letters that it does not know.
        kept = [w for w, n in counts.items() if n >= min_count and w not in SPECIAL_TOKENS]
        return cls(sorted(kept, key=lambda word: (-counts[word], word))[:max_size], tokenizer)

    def encode(self, words: Sequence[str]) -> list[int]:
        """Return indices of words, without start and end; words not known become `unknown`."""
        return [self._index.get(word, self.unknown) for word in words]

    def encode_phrases(self, phrases: Iterable[str]) -> list[list[int]]:
        """Return indices of the words of each phrase that a caption can hold."""
        split = [self.tokenizer.split(phrase) for phrase in phrases]
        return [self.encode(words) for words in split if words and all(w in self for w in words)]

    def decode(self, indices: Iterable[int]) -> list[str]:
        """Return the words up to the first end token; pad and start are left out."""
        kept = takewhile(lambda index: index != self.end, indices)
        return [self.tokens[index] for index in kept if index not in (self.pad, self.start)]

    def save(self, path: Path) -> None:
        """Write the words as JSON; the tokenizer is saved by itself (`Tokenizer.save`)."""
        content = json.dumps({"words": self.words}, ensure_ascii=False, indent=0)
        path.write_text(content, encoding="utf-8")

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer | None = None) -> Vocabulary:
        """Read what `save` wrote."""
        return cls(json.loads(path.read_text(encoding="utf-8"))["words"], tokenizer)
