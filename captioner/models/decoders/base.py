"""The interface of all decoders, for training, search and scoring."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from captioner.models.attention.attention import Attention
from captioner.types import AttentionOutput, Grid


@dataclass(frozen=True)
class TeacherForcingOutput:
    """Prediction of each word of given captions from the words before it.

    All tensors [N, T, ...] are zero where a caption has ended. The M words of all captions are in
    the order of `pack_by_step(targets, lengths)`, with padding only where lengths are a mask.
    """

    logits: Tensor  # [M, V]
    maps: Tensor  # [N, T, L], attention maps
    entropy: Tensor  # [N, T], of each map
    log_prob: Tensor  # [N, T], of the sampled cells
    beta: Tensor | None  # [N, T], mean of the gate; None without a gate


# Builds a new attention over the grid; `context_dim` is the size of its contexts, by default D.
AttentionFactory: TypeAlias = Callable[..., Attention]


class StepDecoder(Protocol):
    """Writes captions one word at a time: a `Decoder` in PyTorch, or an exported graph.

    Training, search and scoring all go through `step`. Callers use the memory's `select`, as that
    of an attention's `Memory`, and pass the state back. Arrays are tensors, or NumPy arrays where
    exported graphs compute.
    """

    @abstractmethod
    def prepare(self, grid: Grid) -> Any:
        """Compute once what all steps need of B images: the memory."""

    @abstractmethod
    def start(self, memory: Any, beams: int = 1) -> Any:
        """Return the state before the first word, for `beams` hypotheses of each image."""

    @abstractmethod
    def step(self, tokens: Any, state: Any, memory: Any) -> tuple[Any, AttentionOutput, Any]:
        """Read the last tokens [B, K]; return logits [B, K, V], the attention, the new state.

        Of the attention, an exported graph gives weights, beta, cells and heads alone.
        """

    @abstractmethod
    def reorder(self, state: Any, images: Any, beams: Any) -> Any:
        """Return the state of hypotheses `beams` [B', K'] of images `images` [B']."""


class Decoder(nn.Module, StepDecoder):
    """A decoder that can be trained."""

    embedding: nn.Embedding
    vocabulary: nn.Linear  # the last layer

    def init_words(self, *, tie: bool) -> None:
        """Initialise the embedding and the last layer, whose weights are one where tied."""
        if tie:
            self.vocabulary.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=self.embedding.embedding_dim**-0.5)
        with torch.no_grad():
            self.embedding.weight[0].zero_()
            self.vocabulary.bias.zero_()

    @abstractmethod
    def forward(self, memory: Any, tokens: Tensor, lengths: Tensor) -> TeacherForcingOutput:
        """Predict all words of given captions (teacher forcing), equal to the steps.

        Args:
            memory: One row for each caption (N).
            tokens: [N, T], the words read, from the start token on.
            lengths: Words to be predicted for each caption, or their mask, as in `pack_by_step`.
        """
