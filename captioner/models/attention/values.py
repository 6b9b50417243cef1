"""What contexts are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from captioner.runtime.linear import Shared, as_autocast_would


class Values:
    """A vector a cell, [B, L, D], to be mixed by maps.

    at_once: there will be many mixes of one row a photo and one backward pass, and the gradient of
    the vectors, which is as large as they are, is made once in the end and not at every mix.
    """

    def __init__(self, vectors: Tensor, *, at_once: bool = False) -> None:
        self._vectors = as_autocast_would(vectors)
        self._shared = Shared(vectors, _gradient) if at_once and vectors.requires_grad else None

    def mix(self, maps: Tensor) -> Tensor:
        """Maps [B, K, L] to contexts [B, K, D], each the sum of the vectors by their share."""
        if self._shared is None:
            return torch.bmm(maps.to(self._vectors.dtype), self._vectors)
        maps = maps.to(self._shared.detached.dtype)
        return self._shared.keep(torch.bmm(maps, self._shared.detached), maps)


def _gradient(maps: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    gradient = torch.cat(list(gradients), dim=1)
    return torch.bmm(torch.cat(list(maps), dim=1).to(gradient.dtype).transpose(1, 2), gradient)
