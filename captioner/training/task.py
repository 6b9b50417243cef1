"""The interface of a training task: a batch in, the loss and its named parts out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from captioner.data.batch import Batch
from captioner.models.build import CaptionModel
from captioner.models.decoders import TeacherForcingOutput


@dataclass(frozen=True)
class LossOutput:
    """Result of a training task for one batch.

    Args:
        loss: Scalar to minimise, with its graph.
        metrics: Detached scalars for the log, by name.
        output: Teacher-forced output that the loss was computed from, for attention statistics.
        lengths: int64 [N] on the CPU, words of each caption in `output`, falling.
    """

    loss: Tensor
    metrics: dict[str, Tensor]
    output: TeacherForcingOutput
    lengths: Tensor


class TrainingTask(nn.Module, ABC):
    """Owns the model and everything else that training learns or remembers.

    All trainable parameters are parameters of the task (the model's, a learned baseline's, style
    embeddings ...), so that `DistributedDataParallel(task)` synchronises them and `state_dict()`
    holds all of them.

    Args:
        model: Model to train.
    """

    def __init__(self, model: CaptionModel) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, batch: Batch) -> LossOutput:
        """Return the loss of a batch."""

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
