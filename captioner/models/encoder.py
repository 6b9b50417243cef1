"""Photo to grid: a pretrained CNN, frozen or fine-tuned from a named stage."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from captioner.errors import ConfigError
from captioner.models.backbones.backbone import Backbone, parameters_in_order
from captioner.models.backbones.efficientnet_lite import set_drop_path
from captioner.models.fused_encoder import FrozenStages, fold_batch_norms, fuse_for_cpu
from captioner.models.self_attention import GridSelfAttention
from captioner.runtime.linear import Linear
from captioner.types import Grid


class Encoder(nn.Module):
    """Annotation vectors of a photo (section 3.1.1).

    The backbone's first `frozen_stages` stages never change, so their output, the frozen features,
    may be computed once and cached; `forward` takes photos or frozen features.

    BatchNorm: frozen stages always use their running statistics. Fine-tuned stages do too with
    batch_norm="frozen" (scale and shift are still learned); with "train" they use and update the
    batch's statistics.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        trainable_from: str | None = None,
        batch_norm: Literal["frozen", "train"] = "frozen",
        project_dim: int | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        self_attention: GridSelfAttention | None = None,
    ) -> None:
        super().__init__()
        if drop_path and not set_drop_path(backbone, drop_path):
            raise ConfigError(
                "encoder.drop_path: only efficientnet_lite2 has blocks that can be left out; use 0"
            )
        self.backbone = backbone
        self.batch_norm = batch_norm
        self.frozen_stages = _freeze(backbone, trainable_from)
        self._frozen = FrozenStages(backbone, self.frozen_stages)
        self.dim = project_dim or backbone.channels
        self.project: nn.Module = nn.Identity()
        if project_dim:
            self.project = nn.Sequential(
                Linear(backbone.channels, project_dim),
                nn.LayerNorm(project_dim),
                nn.ReLU(),
                nn.Dropout(dropout),
            )
        self.self_attention = self_attention

    def train(self, mode: bool = True) -> Encoder:
        super().train(mode)
        self.backbone.stages[: self.frozen_stages].eval()
        for module in self.backbone.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                learned = module.weight is not None and module.weight.requires_grad
                module.train(mode and learned and self.batch_norm == "train")
        return self

    def frozen_features(self, photos: Tensor) -> Tensor:
        """Output of the frozen stages: photos [B, 3, H, W] to [B, C, h, w], without gradient."""
        return self._frozen(photos)

    def for_inference(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move it and make it as fast as it can be, in place: it can no longer be trained."""
        fold_batch_norms(self)
        # The convolutions of a CPU are up to twice as fast on channels-last tensors.
        self.eval().to(device, dtype).to(memory_format=torch.channels_last)
        fuse_for_cpu(self)

    def forward(self, inputs: Tensor, *, from_frozen: bool = False) -> Grid:
        """Photos [B, 3, H, W], or with `from_frozen` their frozen features, to a Grid."""
        features = inputs if from_frozen else self.frozen_features(inputs)
        features = self.backbone(features, start=self.frozen_stages)
        height, width = features.shape[2:]
        cells = self.project(features.flatten(2).transpose(1, 2))
        if self.self_attention is None:
            return Grid(cells, height, width)
        return Grid(self.self_attention(cells, height, width), height, width, local=cells)

    def cells(self, height_px: int, width_px: int) -> int:
        """L for photos of this size."""
        like = next(self.backbone.parameters())
        empty = torch.zeros(1, 3, height_px, width_px, device=like.device, dtype=like.dtype)
        modes = [(module, module.training) for module in self.backbone.modules()]
        self.backbone.eval()  # or BatchNorm would take the empty photo into its statistics
        with torch.no_grad():
            count = self.backbone(empty).shape[2:].numel()
        for module, training in modes:
            module.training = training
        return count


def _freeze(backbone: Backbone, trainable_from: str | None) -> int:
    """Switch gradients off before `trainable_from`; return the number of frozen stages."""
    backbone.requires_grad_(False)
    if trainable_from is None:
        return len(backbone.stages)
    if trainable_from in backbone.names:
        first = backbone.names.index(trainable_from)
        backbone.stages[first:].requires_grad_(True)
        return first
    reached = False
    for name, parameter in parameters_in_order(backbone):
        reached = reached or name == trainable_from or name.startswith(f"{trainable_from}.")
        parameter.requires_grad_(reached)
    if not reached:
        top = dict.fromkeys(name.split(".")[0] for name, _ in parameters_in_order(backbone))
        accepted = backbone.names if len(backbone.names) > 1 else list(top)
        raise ConfigError(
            f"encoder.trainable_from: there is no stage '{trainable_from}'; "
            f"use one of {', '.join(accepted)}, or null to freeze the encoder"
        )
    return next(
        index
        for index, stage in enumerate(backbone.stages)
        if any(parameter.requires_grad for parameter in stage.parameters())
    )
