"""The model in training and inference: image -> grid of annotation vectors -> words."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from captioner.config import EncoderConfig
from captioner.data.batch import Batch
from captioner.models.attention.self_attention import GridSelfAttention
from captioner.models.backbones.backbone import Backbone
from captioner.models.decoders.base import Decoder, TeacherForcingOutput
from captioner.runtime.device import padded_size
from captioner.types import Grid


class Encoder(nn.Module):
    """A pretrained CNN, frozen or fine-tuned from a stage on: annotation vectors (section 3.1.1).

    The output of the backbone's frozen stages, `frozen_features`, never changes and may be cached.
    Where `batch_norm` is frozen, scale and shift of the fine-tuned stages are still learned.
    """

    is_folded = False  # an engine's copy is, whose batch norms are in its convolutions

    def __init__(
        self,
        backbone: Backbone,
        config: EncoderConfig,
        self_attention: GridSelfAttention | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.batch_norm = config.batch_norm
        self.frozen_stages = backbone.freeze_before(config.trainable_from)
        self.folded_stages: list[nn.Module] = []  # for training; what is in a list is not saved
        self.dim = config.project_dim or backbone.channels
        self.project: nn.Module = nn.Identity()
        if config.project_dim:
            self.project = nn.Sequential(
                nn.Linear(backbone.channels, self.dim),
                nn.LayerNorm(self.dim),
                nn.ReLU(),
                nn.Dropout(config.dropout),
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

    def forward(self, inputs: Tensor, *, from_frozen: bool = False) -> Grid:
        """Map images [B, 3, H, W], or with `from_frozen` their frozen features, to a Grid."""
        count = len(inputs)
        # Empty images would enter the statistics of batch norm.
        fills_up = inputs.is_cuda and not (self.training and self.batch_norm == "train")
        if fills_up and (missing := padded_size(count) - count):
            inputs = torch.cat([inputs, inputs.new_zeros(missing, *inputs.shape[1:])])
        features = inputs if from_frozen else self.frozen_features(inputs)
        return self.grid_of(self.backbone.stages[self.frozen_stages :](features)[:count])

    @torch.no_grad()
    def frozen_features(self, images: Tensor) -> Tensor:
        """Map images [B, 3, H, W] to the output [B, C, h, w] of the frozen stages."""
        own = self.backbone.stages[: self.frozen_stages]
        return (self.folded_stages[0] if self.training and self.folded_stages else own)(images)

    def grid_of(self, features: Tensor) -> Grid:
        """Map the backbone's feature map [B, C, h, w] to a Grid."""
        height, width = features.shape[2:]
        cells = self.project(features.flatten(2).transpose(1, 2))
        if self.self_attention is None:
            return Grid(cells, height, width)
        return Grid(self.self_attention(cells, height, width), height, width, local=cells)


class CaptionModel(nn.Module):
    """Image to grid to words."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(
        self, grid: Grid, batch: Batch, seeds: Tensor | None = None
    ) -> TeacherForcingOutput:
        """Predict all words of a batch's captions of the images of the grid.

        seeds are int64 [N], of the cells that hard attention draws; None: PyTorch's generator.
        """
        memory = self.decoder.prepare(grid).select(batch.image_index, seeds)
        return self.decoder(memory, batch.tokens, batch.lengths)
