"""A model in PyTorch, on any device."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from captioner.models.backbones.sources import fold_batch_norms
from captioner.models.model import CaptionModel
from captioner.runtime.cuda_graphs import graphs_of_search
from captioner.runtime.device import usable_cores
from captioner.types import Grid


class TorchEngine:
    """An `Engine` that computes with a copy of a model (`inference_copy`)."""

    name: ClassVar[str] = "torch"

    def __init__(
        self, model: CaptionModel, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self.device, self.dtype = device, dtype
        self.model = inference_copy(model, device, dtype)
        self.decoder = self.model.decoder
        self.search_graphs = graphs_of_search(device)
        if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            # PyTorch knows the cores of the machine, but not a control group's quota.
            torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))

    def encode(self, images: Sequence[np.ndarray]) -> Grid:
        batch = torch.stack([torch.as_tensor(image) for image in images])
        batch = batch.to(self.device, self.dtype, memory_format=torch.channels_last)
        with torch.inference_mode():
            return self.model.encoder(batch).float()

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)


def inference_copy(
    model: CaptionModel, device: torch.device | str, dtype: torch.dtype = torch.float32
) -> CaptionModel:
    """Return a copy of a model for inference on a device, as fast as it can be.

    It is in evaluation mode, with batch norms folded into convolutions. It cannot be trained.

    Args:
        dtype: Type of the encoder, most of the work; the decoder stays in float32.
    """
    model = copy.deepcopy(model).to(device)
    fold_batch_norms(model.encoder)
    # The convolutions of a CPU are up to twice as fast on channels-last tensors.
    model.encoder.to(dtype).to(memory_format=torch.channels_last)
    return model.eval()
