"""Tokenizers other than words: characters, and byte pairs learned from the captions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from captioner.data.vocabulary import UNKNOWN, UNSPACED, Tokenizer, is_mark, is_unspaced
from captioner.errors import needs_extra

_BETWEEN_UNSPACED = re.compile(rf"([{UNSPACED}][^\w\s]*) (?=[{UNSPACED}])")
_RUN_OF_UNSPACED = re.compile(rf"[{UNSPACED}]\W*[{UNSPACED}]")
_MAX_UNSPACED_SHARE = 0.05  # of tokens, above which `words` is the wrong tokenizer
_SPACE = "\u2581"  # of subwords: stands for the space before a token, as in SentencePiece
_SUBWORDS = 8000
# Characters of a subword: without spaces to end them, they would become whole captions.
_LONGEST, _LONGEST_UNSPACED = 16, 4


class CharacterTokenizer(Tokenizer):
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
        words = Tokenizer().split(text)
        tokens += len(words)
        runs += sum(_RUN_OF_UNSPACED.search(word) is not None for word in words)
    if runs <= _MAX_UNSPACED_SHARE * tokens:
        return None
    return (
        f"{runs} of {tokens} words of the captions are runs of a script without spaces "
        "between words, and each run would be one word; set data.tokenizer: characters"
    )


class SubwordTokenizer(Tokenizer):
    """Byte pair encoding (Sennrich et al., 2016) of the text's words, by the package `tokenizers`.

    A token that begins a word starts with "▁".

    Args:
        model: The learned model in the JSON of `tokenizers`; None, before it is fitted, leaves
            words whole.
    """

    name = "subwords"
    is_learned = True

    def __init__(self, model: str | None = None) -> None:
        self.model = model

    @cached_property
    def _encoder(self) -> Any:
        return _import_tokenizers().Tokenizer.from_str(self.model)

    def split(self, text: str) -> list[str]:
        words = super().split(text)
        if self.model is None or not words:
            return [_SPACE + word for word in words]
        return self._encoder.encode(" ".join(words)).tokens

    def join(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace(_SPACE, " ").strip()

    def word_starts(self, tokens: Sequence[str]) -> list[int]:
        starts = (place for place, token in enumerate(tokens) if token.startswith(_SPACE))
        return sorted({0, *starts}) if tokens else []

    def fitted(self, captions: Iterable[str], *, min_count: int, max_size: int | None) -> Tokenizer:
        package = _import_tokenizers()
        captions = list(captions)
        encoder = package.Tokenizer(package.models.BPE(unk_token=UNKNOWN))
        encoder.pre_tokenizer = package.pre_tokenizers.Metaspace(replacement=_SPACE)
        trainer = package.trainers.BpeTrainer(
            vocab_size=max_size or _SUBWORDS,
            min_frequency=min_count,
            max_token_length=_LONGEST_UNSPACED if unspaced_runs(captions) else _LONGEST,
            special_tokens=[UNKNOWN],
            show_progress=False,
        )
        encoder.train_from_iterator(map(" ".join, map(Tokenizer().split, captions)), trainer)
        return SubwordTokenizer(encoder.to_str())

    def settings(self) -> dict[str, Any]:
        return {"model": self.model}


def _import_tokenizers() -> Any:
    with needs_extra("data.tokenizer: subwords", "subwords"):
        import tokenizers
    return tokenizers
