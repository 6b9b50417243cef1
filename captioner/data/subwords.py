"""Byte pair encoding, learned from the captions of a data set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from captioner.data.characters import unspaced_runs
from captioner.data.vocabulary import Tokenizer, WordTokenizer
from captioner.errors import needs_extra

_SPACE = "\u2581"  # of subwords: stands for the space before a token, as in SentencePiece
_UNKNOWN = "<unk>"  # the vocabulary's token of this name
_SUBWORDS = 8000
# Characters of a subword: without spaces to end them, they would become whole captions.
_LONGEST, _LONGEST_UNSPACED = 16, 4


class SubwordTokenizer(WordTokenizer):
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
        encoder = package.Tokenizer(package.models.BPE(unk_token=_UNKNOWN))
        encoder.pre_tokenizer = package.pre_tokenizers.Metaspace(replacement=_SPACE)
        trainer = package.trainers.BpeTrainer(
            vocab_size=max_size or _SUBWORDS,
            min_frequency=min_count,
            max_token_length=_LONGEST_UNSPACED if unspaced_runs(captions) else _LONGEST,
            special_tokens=[_UNKNOWN],
            show_progress=False,
        )
        encoder.train_from_iterator(map(" ".join, map(WordTokenizer().split, captions)), trainer)
        return SubwordTokenizer(encoder.to_str())

    def settings(self) -> dict[str, Any]:
        return {"model": self.model}


def _import_tokenizers() -> Any:
    with needs_extra("data.tokenizer: subwords", "subwords"):
        import tokenizers
    return tokenizers
