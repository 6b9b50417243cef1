"""What a training step does with a batch: from photos and captions to a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeAlias

from torch import Tensor, nn

from captioner.data.batch import Batch
from captioner.models.build import CaptionModel
from captioner.models.decoders import TeacherForcingOutput

# Named parts of the loss, of which `total` is minimised; what was read; its lengths [N].
LossOutput: TypeAlias = "tuple[dict[str, Tensor], TeacherForcingOutput, Tensor]"


class TrainingTask(nn.Module, ABC):
    """From a batch to a loss; its state, if it has one, is part of a checkpoint."""

    @abstractmethod
    def forward(self, model: CaptionModel, batch: Batch) -> LossOutput:
        """Read the batch's captions, or others of its photos."""

    def learned(self) -> list[nn.Parameter]:
        """What the run's optimiser has to learn beside the model."""
        return []
