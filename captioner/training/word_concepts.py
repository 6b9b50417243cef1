"""Words as cells: what a word would look like in a grid, and which words a grid shows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.types import Grid

RARE = -8.0  # a cell's first logit: over some dozens of cells, a word is seen in a photo of fifty


class Concepts(nn.Module):
    """A vector of each word in the space of the annotation vectors, for training alone.

    The same vectors are read in both directions: as the cells of a grid from which the decoder
    writes when only text is at hand, and as detectors of words in the cells of a photo. The second
    draws photos to where the first has taught the decoder to read.
    """

    def __init__(self, vocabulary_size: int, dim: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary_size, dim)
        self.norm = nn.LayerNorm(dim)
        self.bias = nn.Parameter(torch.full((vocabulary_size,), RARE))

    def as_grid(self, words: Tensor) -> Grid:
        """Words [N, L] as a grid of one row, shaped like the encoder's projection."""
        return Grid(torch.relu(self.norm(self.words(words))), 1, words.shape[1])

    def loss(self, features: Tensor, seen: Tensor) -> Tensor:
        """Cross-entropy of which words a photo's captions hold, divided by how many they are.

        A photo shows a word if one of its cells does: 1 - p_w = product over cells of (1 - p_iw),
        the noisy-or of Fang et al. (2015, section 3).

        features: [B, L, D]. seen: bool [B, V].
        """
        vectors = self.norm(self.words.weight) * features.shape[-1] ** -0.5
        logits = F.linear(features, vectors, self.bias).float()
        log_absent = -F.softplus(logits).sum(1)
        log_present = torch.log(-torch.expm1(log_absent.clamp(max=-1e-6)))
        return -torch.where(seen, log_present, log_absent).sum() / seen.sum().clamp(min=1)
