"""Words to numbers and back."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

PAD, START, END, UNKNOWN = "<pad>", "<start>", "<end>", "<unk>"
SPECIAL = (PAD, START, END, UNKNOWN)
_MARK = "\u0301"  # stands for every combining mark, which `re` has no class for
_LETTERS = rf"(?:[^\W_]{_MARK}*)+"
_WORD = re.compile(rf"{_LETTERS}(?:['’-]{_LETTERS})*")


def tokenize(caption: str) -> list[str]:
    """Split a caption into lower-case words: runs of letters and digits in any script.

    The marks on a letter, such as the vowel signs of Indic scripts, belong to its word. Apostrophes
    and hyphens inside a word stay (`man's`, `t-shirt`); all other punctuation goes, as it does in
    the scorers. Text is normalised to NFKC first.

    >>> tokenize("A man's t-shirt, \\"RED\\" & blue.")
    ['a', "man's", 't-shirt', 'red', 'blue']
    """
    text = unicodedata.normalize("NFKC", caption).lower().replace("’", "'")
    shape = text
    if not text.isascii():
        shape = "".join(_MARK if _is_mark(character) else character for character in text)
    return [text[slice(*match.span())] for match in _WORD.finditer(shape)]


def _is_mark(character: str) -> bool:
    """Whether it changes the letter before it; U+FE00 to U+FE0F choose between drawings of it."""
    marks = unicodedata.category(character) in ("Mn", "Mc")
    return marks and not "\ufe00" <= character <= "\ufe0f"


class Vocabulary:
    """The words a model knows, in order of falling frequency after the four special tokens.

    The special tokens have fixed indices: pad 0, start 1, end 2, unknown 3. Only `end` and words
    are ever generated.
    """

    pad, start, end, unknown = range(4)

    def __init__(self, words: Sequence[str]) -> None:
        if len(set(words)) != len(words) or set(words) & set(SPECIAL):
            raise ValueError("a vocabulary needs distinct words without the special tokens")
        self.tokens = [*SPECIAL, *words]
        self._index = {token: index for index, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, word: str) -> bool:
        return word in self._index and word not in SPECIAL

    @classmethod
    def build(cls, captions: Iterable[str], *, min_count: int = 5) -> Vocabulary:
        """Keep the words that occur at least `min_count` times; ties in alphabetical order."""
        counts = Counter(word for caption in captions for word in tokenize(caption))
        kept = [word for word, count in counts.items() if count >= min_count]
        return cls(sorted(kept, key=lambda word: (-counts[word], word)))

    def encode(self, words: Sequence[str]) -> list[int]:
        """Indices of the words, without start and end; words not known become `unknown`."""
        return [self._index.get(word, self.unknown) for word in words]

    def decode(self, indices: Iterable[int]) -> list[str]:
        """Words up to the first end token; pad and start are left out."""
        words = []
        for index in indices:
            if index == self.end:
                break
            if index not in (self.pad, self.start):
                words.append(self.tokens[index])
        return words

    def save(self, path: Path) -> None:
        path.write_text(
            json.dumps({"words": self.tokens[len(SPECIAL) :]}, ensure_ascii=False, indent=0),
            encoding="utf-8",
        )

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read a vocabulary.

        Raises:
            OSError, ValueError, KeyError: the file is missing or is not a vocabulary.
        """
        return cls(json.loads(path.read_text(encoding="utf-8"))["words"])
