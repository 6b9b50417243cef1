"""What a training step does with a batch: from photos and captions to a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeAlias

from torch import Tensor, nn

from captioner.data.dataset import Batch
from captioner.decoders import Forced
from captioner.model import CaptionModel

# Named parts of the loss, of which `total` is minimised; what was read; its lengths [N].
Outcome: TypeAlias = "tuple[dict[str, Tensor], Forced, Tensor]"


class Objective(nn.Module, ABC):
    """From a batch to a loss; its state, if it has one, is part of a checkpoint."""

    @abstractmethod
    def forward(self, model: CaptionModel, batch: Batch) -> Outcome:
        """Read the batch's captions, or others of its photos."""

    def learned(self) -> list[nn.Parameter]:
        """What the run's optimiser has to learn beside the model."""
        return []
