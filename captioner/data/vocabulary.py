"""The words that a model knows, as numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from captioner.data.tokenizer import Tokenizer, WordTokenizer

PAD, START, END, UNKNOWN = "<pad>", "<start>", "<end>", "<unk>"
SPECIAL_TOKENS = (PAD, START, END, UNKNOWN)


class Vocabulary:
    """Tokens with their indices: the four special ones, then words by falling frequency.

    Only `end` and words are ever generated.
    """

    pad, start, end, unknown = range(len(SPECIAL_TOKENS))

    def __init__(self, words: Sequence[str], tokenizer: Tokenizer | None = None) -> None:
        self.tokenizer = tokenizer or WordTokenizer()
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
        tokenizer = tokenizer or WordTokenizer()
        counts = Counter(word for caption in captions for word in tokenizer.split(caption))
        # A learned tokenizer has a token of its own for letters that it does not know.
        kept = [w for w, n in counts.items() if n >= min_count and w not in SPECIAL_TOKENS]
        return cls(sorted(kept, key=lambda word: (-counts[word], word))[:max_size], tokenizer)

    def extended(self, other: Vocabulary) -> Vocabulary:
        """Return this vocabulary with the words of `other` that it lacks after its own."""
        new = [word for word in other.words if word not in self]
        return Vocabulary([*self.words, *new], self.tokenizer)

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
