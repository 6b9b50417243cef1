"""The interface of a training task: a batch in, the loss and its named parts out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
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
        metrics: Detached scalars for the log, by name. Their mean over the processes is that of
            the whole batch; of the advantage it is the mean square.
    """

    loss: Tensor
    metrics: dict[str, Tensor]


@dataclass(frozen=True)
class TaskData:
    """Everything that a task may be built from."""

    config: Config
    model: CaptionModel
    vocabulary: Vocabulary
    images: SourceImages
    device: torch.device


class TrainingTask(nn.Module, ABC):
    """Owns the model and everything else that training learns or remembers.

    All trainable parameters are parameters of the task (the model's, a learned baseline's), so that
    `DistributedDataParallel(task)` synchronises them and `state_dict()` holds all of them.
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
    def from_data(cls, data: TaskData) -> TrainingTask:
        """Build the task of a recipe.

        Raises:
            CaptionerError: Something that it needs cannot be used.
        """

    @abstractmethod
    def forward(self, batch: Batch) -> LossOutput:
        """Return the loss of a batch, or of this process's share of one, which may be empty.

        It is scaled so that the mean over the processes is the loss of the whole batch.
        """

    def zero_loss(self) -> Tensor:
        """Return the loss of no caption, with a graph for the backward pass."""
        return 0.0 * self.model.decoder.embedding.weight.sum()

    def training_state(self) -> dict[str, object]:
        """Return the state of the task apart from the model's weights, for a checkpoint."""
        state = self.state_dict()
        return {name: value for name, value in state.items() if not name.startswith("model.")}

    def load_training_state(self, state: dict[str, object]) -> None:
        """Load what `training_state` returned.

        Raises:
            RuntimeError: The state belongs to another task.
        """
        mismatch = self.load_state_dict(state, strict=False)
        missing = [name for name in mismatch.missing_keys if not name.startswith("model.")]
        if missing or mismatch.unexpected_keys:
            raise RuntimeError(f"other names of weights: {[*missing, *mismatch.unexpected_keys]}")
