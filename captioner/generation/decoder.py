"""What the search and scoring of captions need of a decoder, whatever computes it."""

from __future__ import annotations

from typing import Any, Protocol

from captioner.generation.arrays import Array
from captioner.types import Grid


class WordAttention(Protocol):
    """The attention to one word, for B images and K hypotheses: see `AttentionOutput`."""

    @property
    def weights(self) -> Array: ...

    @property
    def beta(self) -> Array | None: ...

    @property
    def cells(self) -> Array | None: ...

    @property
    def heads(self) -> Array | None: ...


class StepDecoder(Protocol):
    """Writes captions one word at a time: `models.decoders.Decoder`, or an exported graph.

    Callers only pass the memory and the state back, `select` images of the one and `reorder` the
    other.
    """

    def prepare(self, grid: Grid) -> Any:
        """Compute what is needed of B images once."""

    def start(self, memory: Any, beams: int = 1) -> Any:
        """Return the state before the first word, for `beams` hypotheses of each image."""

    def step(self, tokens: Array, state: Any, memory: Any) -> tuple[Array, WordAttention, Any]:
        """Read the last tokens [B, K]; return logits [B, K, V], the attention, the new state."""

    def reorder(self, state: Any, images: Array, beams: Array) -> Any:
        """Return the state of hypotheses `beams` [B', K'] of images `images` [B']."""
