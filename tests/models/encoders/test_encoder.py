"""From feature map to grid, and what may change in training: gradients and BatchNorm."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import tiny
import torch
from pretend_gpu import CUDA, PretendedGPU, move
from torch import Tensor, nn

from captioner.config import EncoderConfig
from captioner.errors import ConfigError
from captioner.models.backbones.backbone import Backbone, Preprocessing, build_backbone
from captioner.models.model import Encoder

STAGES = "stem blocks.0 blocks.1 blocks.2 blocks.3 blocks.4 blocks.5 blocks.6 head".split()


@pytest.fixture(scope="module")
def networks() -> dict[str, Backbone]:
    torch.manual_seed(0)
    names = ("efficientnet_lite2", "timm/test_resnet")
    return {name: build_backbone(name, weights="none") for name in names}


@pytest.fixture
def build(networks: dict[str, Backbone]) -> Any:
    """Encoders on copies of small random backbones, whose BatchNorm is far from 0 and 1."""

    def build_encoder(name: str = "efficientnet_lite2", **settings: Any) -> Encoder:
        torch.manual_seed(1)
        backbone = copy.deepcopy(networks[name])
        for module in batch_norms(backbone):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 1.5)
        return Encoder(backbone, EncoderConfig(**settings))

    return build_encoder


def batch_norms(module: nn.Module) -> list[Any]:
    return [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def photos(height: int = 64, width: int = 96, count: int = 3) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(2))


def statistics(module: nn.Module) -> list[Tensor]:
    return [m.running_mean.clone() for m in batch_norms(module)] + [
        m.running_var.clone() for m in batch_norms(module)
    ]


def moved(before: list[Tensor], module: nn.Module) -> list[bool]:
    return [not torch.equal(a, b) for a, b in zip(before, statistics(module), strict=True)]


def test_cells_are_row_major_with_the_mean_of_their_own_pixels() -> None:
    pool = Backbone([("pool", nn.AvgPool2d(8))], channels=3, preprocessing=Preprocessing())
    inputs = photos(16, 40, count=2)
    grid = Encoder(pool, EncoderConfig())(inputs)
    assert (grid.height, grid.width) == (2, 5)
    for row, column in product(range(2), range(5)):
        pixels = inputs[:, :, 8 * row : 8 * (row + 1), 8 * column : 8 * (column + 1)]
        torch.testing.assert_close(grid.features[:, row * 5 + column], pixels.mean((2, 3)))


@torch.inference_mode()
def test_the_projection_is_a_layer_a_norm_and_a_relu_of_each_cell_alone(build: Any) -> None:
    encoder = build(project_dim=7, dropout=0.5).eval()
    inputs = photos()
    linear, cell = encoder.project[0], encoder.backbone(inputs)[1, :, 0, 2]
    expected = nn.functional.layer_norm(linear.weight @ cell + linear.bias, (7,)).relu()
    assert encoder.dim == 7
    torch.testing.assert_close(encoder(inputs).features[1, 2], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch_norm", ["frozen", "train"])
@pytest.mark.parametrize("name", ["efficientnet_lite2", "timm/test_resnet"])
def test_a_frozen_encoder_has_no_gradients_and_train_mode_changes_nothing(
    build: Any, name: str, batch_norm: Any
) -> None:
    encoder = build(name, batch_norm=batch_norm)
    inputs = photos().requires_grad_()
    expected = encoder.eval()(inputs).features
    before = statistics(encoder)
    found = encoder.train()(inputs).features
    assert not found.requires_grad
    assert torch.equal(found, expected)
    assert not any(moved(before, encoder))
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert encoder.frozen_stages == len(encoder.backbone.stages)


def test_no_statistics_of_images_that_fill_a_batch_on_a_gpu(build: Any) -> None:
    here, there = (build(trainable_from="stem", batch_norm="train").train() for _ in range(2))
    here(photos())
    with PretendedGPU():
        move(there)
        there(photos().to(CUDA))
    assert not any(moved(statistics(here), there))


@pytest.mark.parametrize("batch_norm", ["frozen", "train"])
@pytest.mark.parametrize("first", ["stem", "blocks.4", "head"])
def test_gradients_and_statistics_move_from_the_named_stage_on_only(
    build: Any, first: str, batch_norm: Any
) -> None:
    encoder = build(trainable_from=first, batch_norm=batch_norm).train()
    before = [statistics(stage) for stage in encoder.backbone.stages]
    encoder(photos()).features.square().mean().backward()
    at = STAGES.index(first)
    assert encoder.frozen_stages == at
    for index, stage in enumerate(encoder.backbone.stages):
        gradients = [parameter.grad for parameter in stage.parameters()]
        if index < at:
            assert all(gradient is None for gradient in gradients)
        else:  # BatchNorm's scale and shift among them, whatever its statistics do
            assert all(gradient is not None and gradient.any() for gradient in gradients)
        moves = moved(before[index], stage)
        assert moves == [index >= at and batch_norm == "train"] * len(moves)


@pytest.mark.parametrize("first", ["layer3", "layer3.0"])
def test_a_network_of_one_stage_is_fine_tuned_from_a_layer_of_its_own(
    build: Any, first: str
) -> None:
    encoder = build("timm/test_resnet", trainable_from=first, batch_norm="train").train()
    layers = encoder.backbone.stages[0].network
    before = {name: statistics(layer) for name, layer in layers.named_children()}
    encoder(photos()).features.square().mean().backward()
    for name, layer in layers.named_children():
        learns = name in ("layer3", "layer4")
        for parameter in layer.parameters():
            assert (parameter.grad is not None) == learns, name
        moves = moved(before[name], layer)
        assert moves == [learns] * len(moves), name
    assert encoder.frozen_stages == 0


@pytest.mark.parametrize("name", ["efficientnet_lite2", "timm/test_resnet"])
def test_a_stage_that_is_not_there_is_refused_in_one_sentence(build: Any, name: str) -> None:
    message = tiny.sentence(ConfigError, build, name, trainable_from="conv5_4")
    assert message.startswith("encoder.trainable_from: there is no stage 'conv5_4'; use one of ")
    assert ("blocks.4" if name == "efficientnet_lite2" else "layer4") in message


@pytest.mark.parametrize("first", [None, "blocks.1"])
def test_frozen_features_and_the_rest_are_the_whole_way(build: Any, first: str | None) -> None:
    encoder = build(trainable_from=first, project_dim=6).train()
    inputs = photos()
    frozen = encoder.frozen_features(inputs)
    kept = frozen.clone()
    assert not frozen.requires_grad
    whole, rest = encoder(inputs), encoder(frozen, from_frozen=True)
    assert torch.equal(whole.features, rest.features)
    assert (whole.height, whole.width) == (rest.height, rest.width)
    assert torch.equal(frozen, kept), "a cache must not be written over"


def test_the_fingerprint_covers_the_frozen_stages_and_nothing_else(build: Any) -> None:
    backbone = build(trainable_from="blocks.4").backbone
    stop = STAGES.index("blocks.4")
    before, whole = backbone.fingerprint(stop), backbone.fingerprint()
    assert len({before, whole}) == 2
    assert copy.deepcopy(backbone).fingerprint(stop) == before
    with torch.no_grad():
        next(backbone.stages[stop].parameters()).view(-1)[0] += 1e-3
    assert backbone.fingerprint(stop) == before
    assert backbone.fingerprint() != whole
    for change in ("weight", "running_mean"):
        changed = copy.deepcopy(backbone)
        with torch.no_grad():
            getattr(batch_norms(changed.stages[stop - 1])[-1], change)[0] += 1e-3
        assert changed.fingerprint(stop) != before
