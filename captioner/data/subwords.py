"""A tokenizer whose tokens are learned from the training captions, for any language."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from captioner.data.tokenizer import Tokenizer, WordTokenizer
from captioner.errors import CheckpointError, needs_extra

_SPACE = "\u2581"  # stands for the space before a token, as in SentencePiece
_UNKNOWN = "<unk>"  # the vocabulary's token of this name
_DEFAULT_SIZE = 8000
# Characters of a token: without spaces to end them, tokens would become whole captions.
_LONGEST, _LONGEST_UNSPACED = 16, 4


class SubwordTokenizer(WordTokenizer):
    """Byte pair encoding (Sennrich et al., 2016) of the text's words, by the package `tokenizers`.

    Frequent words and phrases of a script without spaces become one token, rare ones several, and
    none is out of vocabulary. A token that begins a word starts with "▁".

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
        package = _import_tokenizers()
        try:
            return package.Tokenizer.from_str(self.model)
        except Exception as error:  # noqa: BLE001  the package has no type of its own
            raise CheckpointError(
                f"the model's tokenizer is damaged ({error}); fetch the model again"
            ) from None

    def split(self, text: str) -> list[str]:
        words = super().split(text)
        if self.model is None or not words:
            return [_SPACE + word for word in words]
        tokens: list[str] = self._encoder.encode(" ".join(words)).tokens
        return tokens

    def join(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace(_SPACE, " ").strip()

    def word_starts(self, tokens: Sequence[str]) -> list[int]:
        starts = (place for place, token in enumerate(tokens) if token.startswith(_SPACE))
        return sorted({0, *starts}) if tokens else []

    def fitted(self, captions: Iterable[str], *, min_count: int, max_size: int | None) -> Tokenizer:
        package = _import_tokenizers()
        captions = list(captions)
        unspaced = WordTokenizer().warning(captions) is not None
        encoder = package.Tokenizer(package.models.BPE(unk_token=_UNKNOWN))
        encoder.pre_tokenizer = package.pre_tokenizers.Metaspace(replacement=_SPACE)
        trainer = package.trainers.BpeTrainer(
            vocab_size=max_size or _DEFAULT_SIZE,
            min_frequency=min_count,
            max_token_length=_LONGEST_UNSPACED if unspaced else _LONGEST,
            special_tokens=[_UNKNOWN],
            show_progress=False,
        )
        texts = (" ".join(super(SubwordTokenizer, self).split(text)) for text in captions)
        encoder.train_from_iterator(texts, trainer)
        return SubwordTokenizer(encoder.to_str())

    def settings(self) -> dict[str, Any]:
        return {"model": self.model}

    def warning(self, texts: Iterable[str]) -> str | None:
        return None


def _import_tokenizers() -> Any:
    with needs_extra("data.tokenizer: subwords", "subwords"):
        import tokenizers
    return tokenizers
