"""What the engine with PyTorch computes with: a copy of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from captioner.checkpoint_writer import save_model
from captioner.config import EncoderConfig, ModelConfig
from captioner.data.vocabulary import Vocabulary
from captioner.engines.pytorch import TorchEngine
from captioner.errors import CheckpointError
from captioner.models.backbones.backbone import build_backbone
from captioner.models.model import CaptionModel, Encoder


def test_the_engine_s_copy_leaves_the_model_as_it_is_and_is_not_saved(tmp_path: Path) -> None:
    decoder: Any = nn.Dropout()
    model = CaptionModel(
        Encoder(build_backbone("efficientnet_lite2"), EncoderConfig(trainable_from="blocks.5")),
        decoder,
    ).train()
    types, modes = zip(*((type(m), m.training) for m in model.modules()), strict=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fused = TorchEngine(model, torch.device("cpu"), "bfloat16").model
    assert [type(m) for m in model.modules()] == list(types)
    assert [m.training for m in model.modules()] == list(modes)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not any(m.training for m in fused.modules())
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused.modules())
    assert {value.dtype for value in fused.encoder.parameters()} == {torch.bfloat16}
    ours = {value.data_ptr() for value in fused.parameters()}
    assert not ours & {value.data_ptr() for value in model.parameters()}
    with pytest.raises(CheckpointError, match="load_model"):  # nothing could read it
        save_model(tmp_path / "model", fused, ModelConfig(), Vocabulary(["a"]), card="")
