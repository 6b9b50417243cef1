"""A model in PyTorch, on any device."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from captioner.engines import Precision
from captioner.models.backbones.sources import fold_batch_norms
from captioner.models.model import CaptionModel
from captioner.runtime.cuda_graphs import graphs_of_search
from captioner.runtime.parallel import usable_cores
from captioner.types import Grid


class TorchEngine:
    """Computes with a copy of a model, in evaluation mode and as fast as it can.

    Batch norms are folded into convolutions, so the copy cannot be trained.

    Args:
        precision: Number format of the encoder, most of the work; the decoder stays in float32.
    """

    name: ClassVar[str] = "torch"

    def __init__(
        self, model: CaptionModel, device: torch.device, precision: Precision = "float32"
    ) -> None:
        self.device, self.dtype = device, getattr(torch, precision)
        self.model = copy.deepcopy(model).to(device).eval()
        self.model.encoder.is_folded = fold_batch_norms(self.model.encoder)
        # The convolutions of a CPU are up to twice as fast on channels-last tensors.
        self.model.encoder.to(self.dtype).to(memory_format=torch.channels_last)
        self.decoder = self.model.decoder
        self.search_graphs = graphs_of_search(device)
        if device.type == "cuda":  # TF32, as in training and in convolutions
            torch.set_float32_matmul_precision("high")
        if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            # PyTorch knows the cores of the machine, but not a control group's quota.
            torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))

    def encode(self, images: Sequence[np.ndarray]) -> Grid:
        """Map B images [3, H, W] to their grid."""
        batch = torch.stack([torch.as_tensor(image) for image in images])
        batch = batch.to(self.device, self.dtype, memory_format=torch.channels_last)
        with torch.inference_mode():
            grid = self.model.encoder(batch)
        local = None if grid.local is None else grid.local.float()
        return replace(grid, features=grid.features.float(), local=local)

    def generator(self, seed: int) -> torch.Generator:
        """Return random numbers with this seed, for `generation.sample`."""
        return torch.Generator(self.device).manual_seed(seed)

    def seed(self, seed: int) -> None:
        """Seed the random numbers by which hard attention samples cells."""
        torch.manual_seed(seed)
