"""What training, search, scoring and export know of a decoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from captioner.types import AttentionOutput, Grid


@dataclass(frozen=True)
class TeacherForcingOutput:
    """The outcome of writing given captions word by word (teacher forcing).

    The M words of all captions are packed: first every caption's first word, then every second
    word, and so on, which is the order of `pack_by_step(targets, lengths)`. Nothing is padded, so
    the vocabulary-sized tensor exists for real words only.

    logits: [M, V].
    maps: [N, T, L], zero where a caption has ended.
    entropy, log_prob, beta: [N, T], zero where a caption has ended; beta None without a gate.
    queries: [M, H], the state before each look, without gradient.
    cells: [N, T] (or [N, T, heads]), sampled cells; None for soft attention.
    """

    logits: Tensor
    maps: Tensor
    entropy: Tensor
    log_prob: Tensor
    beta: Tensor | None
    queries: Tensor
    cells: Tensor | None = None


def rows_per_step(lengths: Tensor) -> list[int]:
    """How many captions, sorted by falling length, still run at each step.

    >>> rows_per_step(torch.tensor([3, 1]))
    [2, 1, 1]
    """
    return _running(lengths).sum(1).tolist()


def unpack_by_step(values: Tensor, lengths: Tensor) -> Tensor:
    """The way back from `packed`: [M, ...] to [N, T, ...], zero where a caption has ended."""
    running = _running(lengths)
    whole = values.new_zeros(running.numel(), *values.shape[1:])
    places = running.flatten().nonzero().squeeze(1).to(values.device, non_blocking=True)
    return whole.index_copy_(0, places, values).unflatten(0, running.shape).transpose(0, 1)


def pack_by_step(values: Tensor, lengths: Tensor) -> Tensor:
    """[N, T, ...] of captions sorted by falling length to [M, ...], step after step."""
    places = _running(lengths).nonzero().to(values.device, non_blocking=True)
    steps, rows = places.unbind(1)
    return values[rows, steps]


def _running(lengths: Tensor) -> Tensor:
    """bool [T, N]. Like the lengths it is on the CPU: counted on a GPU, each count would wait for
    all that is queued there."""
    return lengths > torch.arange(int(lengths.max())).unsqueeze(1)


PreparedT = TypeVar("PreparedT", bound="Prepared")


class Prepared(Protocol):
    """A grid with what a decoder computed of it, once a photo: `Memory`, or one for every layer."""

    @property
    def grid(self) -> Grid: ...

    def select(self: PreparedT, index: Tensor | slice) -> PreparedT:
        """The photos of `index` ([B'] or a slice)."""


class Decoder(nn.Module, ABC):
    """Writes captions a word at a time. Everything goes through `step`.

    The memory is what its `prepare` gave, the state whatever it needs to go on: callers only pass
    them back, `select` photos of the one and `reorder` the other.
    """

    vocabulary_size: int
    embedding: nn.Embedding

    @abstractmethod
    def prepare(self, grid: Grid) -> Prepared:
        """What is computed once a photo."""

    @abstractmethod
    def start(self, memory: Any, beams: int = 1) -> Any:
        """State before the first word, for `beams` hypotheses a photo."""

    @abstractmethod
    def step(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, AttentionOutput, Any]:
        """Read the last tokens [B, K]; return logits [B, K, V], the attention, the new state."""

    @abstractmethod
    def reorder(self, state: Any, photos: Tensor, beams: Tensor) -> Any:
        """The state of hypotheses `beams` [B', K'] of photos `photos` [B']."""

    @abstractmethod
    def forward(
        self, memory: Any, tokens: Tensor, lengths: Tensor, style: Tensor | None = None
    ) -> TeacherForcingOutput:
        """Teacher forcing, equal to the steps.

        Args:
            memory: One row a caption (N).
            tokens: [N, T], the words read, from the start token on.
            lengths: [N] on the CPU, words to be written for each caption, falling.
            style: [N, E], added to the embedding of the first token, so that training can tell
                captions of several sources apart. The steps add none, which is zeros here.
        """


def add_style(words: Tensor, style: Tensor | None) -> Tensor:
    """Add `style` [N, E] to the first of the embedded words [N, T, E]."""
    if style is None:
        return words
    return torch.cat([words[:, :1] + style.unsqueeze(1), words[:, 1:]], dim=1)
