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
    """Owns the model and all else that training learns, so that DDP and `state_dict` see it all."""

    def __init__(self, model: CaptionModel) -> None:
        super().__init__()
        self.model = model

    @classmethod
    @abstractmethod
    def from_recipe(
        cls, config: Config, model: CaptionModel, vocabulary: Vocabulary, images: SourceImages
    ) -> TrainingTask | None:
        """Build the task of a recipe, for a model on the device that it will be trained on.

        None: the recipe asks for another. The registry's first task that is not None is used.
        """

    @abstractmethod
    def forward(self, batch: Batch) -> LossOutput:
        """Return the loss of a batch, or of this process's share of one, which may be empty.

        The mean over the processes is the loss of the whole batch.
        """

    def empty_output(self) -> LossOutput:
        """Return the loss of no caption, zero with a graph for the backward pass."""
        zero = 0.0 * self.model.decoder.embedding.weight.sum()
        return LossOutput(zero, {"total": zero.detach()})
