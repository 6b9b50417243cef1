"""The interface of a training task: a batch in, the loss and its named parts out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from captioner.config.settings import Config
from captioner.data.batch import Batch
from captioner.data.sources import SourceImages
from captioner.data.vocabulary import Vocabulary
from captioner.models.model import CaptionModel


@dataclass(frozen=True)
class LossOutput:
    """Result of a training task for one batch.

    Args:
        metrics: Detached scalars for the log. Their mean over the processes is that of the whole
            batch; of the advantage it is the mean square.
    """

    loss: Tensor
    metrics: dict[str, Tensor]


class TrainingTask(nn.Module, ABC):
    """Owns the model and everything else that training learns or remembers.

    So `DistributedDataParallel(task)` synchronises it all, and `state_dict()` holds it all.
    """

    def __init__(self, model: CaptionModel) -> None:
        super().__init__()
        self.model = model

    @classmethod
    @abstractmethod
    def is_asked_for(cls, config: Config) -> bool:
        """Return whether a recipe asks for this task; the registry's first such task is used."""

    @classmethod
    @abstractmethod
    def from_recipe(
        cls, config: Config, model: CaptionModel, vocabulary: Vocabulary, images: SourceImages
    ) -> TrainingTask:
        """Build the task of a recipe, for a model on the device that it will be trained on."""

    @abstractmethod
    def forward(self, batch: Batch) -> LossOutput:
        """Return the loss of a batch, or of this process's share of one, which may be empty.

        The mean over the processes is the loss of the whole batch.
        """

    def empty_output(self) -> LossOutput:
        """Return the loss of no caption, zero with a graph for the backward pass."""
        zero = 0.0 * self.model.decoder.embedding.weight.sum()
        return LossOutput(zero, {"total": zero.detach()})
