"""What inference changes in the encoder: everything but what it gives."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captioner.engines.pytorch import inference_copy
from captioner.models.backbones.backbone import Backbone, build_backbone
from captioner.models.backbones.efficientnet_lite import (
    FusedConv,
    OneByOne,
    SameConv,
)
from captioner.models.fused_encoder import fold_batch_norms, fuse_for_cpu
from captioner.models.model import CaptionModel, Encoder, FrozenStages
from captioner.runtime.device import onednn_can_pack

ONEDNN = pytest.mark.skipif(
    not onednn_can_pack(torch.zeros(1)),
    reason="no oneDNN here, or not on this kind of processor",
)


@pytest.fixture(scope="module")
def plain() -> Backbone:
    return build_backbone("efficientnet_lite2").eval()


@pytest.fixture(scope="module")
def folded(plain: Backbone) -> Backbone:
    backbone = copy.deepcopy(plain)
    fold_batch_norms(backbone)
    return backbone


@pytest.fixture(scope="module")
def fused(folded: Backbone) -> Backbone:
    backbone = copy.deepcopy(folded)
    fuse_for_cpu(backbone.stages)
    return backbone


def photos_of(height: int, width: int, count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    photos = torch.randn(count, 3, height, width, generator=generator)
    return photos.to(memory_format=torch.channels_last)


@torch.inference_mode()
def test_folded_batch_norms_give_the_same_features(plain: Backbone, folded: Backbone) -> None:
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    found, expected = folded(photos_of(96, 64)), plain(photos_of(96, 64))
    assert found.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@ONEDNN
@pytest.mark.parametrize("size", [(64, 96), (75, 50), (50, 75), (33, 47), (97, 31)])
@torch.inference_mode()
def test_fused_convolutions_give_the_same_features(
    folded: Backbone, fused: Backbone, size: tuple[int, int]
) -> None:
    assert not {SameConv, nn.ReLU6} & {type(module) for module in fused.modules()}
    found, expected = fused(photos_of(*size)), folded(photos_of(*size))
    assert found.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert found.is_contiguous(memory_format=torch.channels_last)


@ONEDNN
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("relu6", [False, True])
@pytest.mark.parametrize("size", [(8, 9), (9, 8), (7, 7), (10, 6)])
@torch.inference_mode()
def test_a_fused_convolution_is_a_plain_loop(
    kernel: int, stride: int, relu6: bool, size: tuple[int, int]
) -> None:
    """Padded as TensorFlow pads: in all as much as is missing, the odd one right and below."""
    torch.manual_seed(0)
    conv = SameConv(2, 2, kernel, stride=stride, groups=2)
    conv.bias = nn.Parameter(torch.randn(2))
    nn.init.normal_(conv.weight)
    x = 3 * torch.randn(1, 2, *size)
    outs = [math.ceil(n / stride) for n in size]
    before = [
        max((out - 1) * stride + kernel - n, 0) // 2 for out, n in zip(outs, size, strict=True)
    ]
    expected = torch.zeros(1, 2, *outs, dtype=torch.double)
    for channel in range(2):
        for row in range(outs[0]):
            for column in range(outs[1]):
                total = conv.bias[channel].double()
                for i in range(kernel):
                    for j in range(kernel):
                        y, z = row * stride + i - before[0], column * stride + j - before[1]
                        if 0 <= y < size[0] and 0 <= z < size[1]:
                            weight = conv.weight[channel, 0, i, j].double()
                            total = total + weight * x[0, channel, y, z].double()
                expected[0, channel, row, column] = total.clamp(0, 6) if relu6 else total
    found = FusedConv(conv, relu6=relu6)(x)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)


@ONEDNN
@torch.inference_mode()
def test_an_image_alone_gives_the_same_as_in_a_batch(fused: Backbone) -> None:
    photos = photos_of(96, 64)
    together = fused(photos)
    alone = torch.cat([fused(photo) for photo in photos.split(1)])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)
    for middle in (0, 2, 4, 6, 9):  # as an encoder with frozen stages goes through them
        features = fused.stages[middle:](fused.stages[:middle](photos))
        torch.testing.assert_close(features, together, atol=1e-4, rtol=1e-4)
    assert fused.stages[:2](photos[:0]).shape == (0, 16, 48, 32)


@ONEDNN
@torch.inference_mode()
def test_wide_maps_are_made_image_by_image(fused: Backbone) -> None:
    seen: dict[str, list[int]] = {name: [] for name in fused.names}
    hooks = [
        stage[0].register_forward_pre_hook(lambda _, given, n=name: seen[n].append(len(given[0])))
        for name, stage in zip(fused.names, fused.stages, strict=True)
    ]
    fused(photos_of(64, 64))
    for hook in hooks:
        hook.remove()
    assert [seen[name] for name in fused.names[:4]] == [[1, 1, 1]] * 4
    assert [seen[name] for name in fused.names[4:]] == [[3]] * 5


@ONEDNN
@torch.inference_mode()
def test_bfloat16_is_fused_too(folded: Backbone) -> None:
    rough = copy.deepcopy(folded).bfloat16()
    photos = photos_of(64, 64).bfloat16()
    expected = rough(photos)
    fuse_for_cpu(rough.stages)
    found = rough(photos)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)


@ONEDNN
@torch.inference_mode()
def test_not_a_number_is_not_hidden(folded: Backbone) -> None:
    damaged = copy.deepcopy(folded)
    conv: Any = damaged.stages[2][0].conv_pw
    conv.weight.view(-1)[7] = torch.nan
    fuse_for_cpu(damaged.stages)
    assert damaged(photos_of(64, 64)).isnan().any()


@ONEDNN
@torch.inference_mode()
def test_a_fused_encoder_can_be_copied_and_saved(fused: Backbone) -> None:
    expected = fused(photos_of(64, 64))
    file = io.BytesIO()
    torch.save(fused, file)
    file.seek(0)
    for other in (copy.deepcopy(fused), torch.load(file, weights_only=False)):
        assert torch.equal(other(photos_of(64, 64)), expected)


@ONEDNN
def test_gradients_moves_and_new_weights_are_computed_plainly(folded: Backbone) -> None:
    ours, photos = copy.deepcopy(folded), photos_of(64, 64)
    fuse_for_cpu(ours.stages)
    photos.requires_grad_()
    (expected,) = torch.autograd.grad(folded(photos).square().sum(), photos)
    (found,) = torch.autograd.grad(ours(photos).square().sum(), photos)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
    with torch.no_grad():
        other = {name: value + 0.01 for name, value in folded.state_dict().items()}
        ours.load_state_dict(other)
        kept = copy.deepcopy(folded)
        kept.load_state_dict(other)
        torch.testing.assert_close(ours(photos), kept(photos), rtol=1e-3, atol=1e-3)
        double = photos.double()
        torch.testing.assert_close(ours.double()(double), kept.double()(double))
        torch.testing.assert_close(copy.deepcopy(ours)(double), kept(double))


@ONEDNN
@torch.no_grad()
def test_where_bfloat16_cannot_be_packed_it_is_not(
    monkeypatch: pytest.MonkeyPatch, folded: Backbone
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    rough = copy.deepcopy(folded).bfloat16()
    fuse_for_cpu(rough.stages)
    assert not any(isinstance(module, FusedConv) for module in rough.modules())


def test_processors_without_onednn_keep_plain_convolutions(
    monkeypatch: pytest.MonkeyPatch, folded: Backbone
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    kept = copy.deepcopy(folded)
    fuse_for_cpu(kept.stages)
    assert not any(isinstance(module, FusedConv) for module in kept.modules())
    assert not any(isinstance(module, OneByOne) for module in kept.modules())


def test_networks_of_other_makes_are_left_alone() -> None:
    resnet = build_backbone("resnet50", weights="none")
    before = [type(module) for module in resnet.modules()]
    fold_batch_norms(resnet)
    fuse_for_cpu(resnet.stages)
    assert [type(module) for module in resnet.modules()] == before


# --- frozen stages --------------------------------------------------------------------------------


@torch.no_grad()
def test_frozen_stages_follow_their_weights(plain: Backbone) -> None:
    backbone, photos = copy.deepcopy(plain), photos_of(64, 64)
    frozen = FrozenStages(backbone, 3)

    def check() -> None:
        torch.testing.assert_close(
            frozen(photos), backbone.stages[:3](photos), atol=1e-3, rtol=1e-3, check_stride=False
        )

    check()
    once = frozen._fused
    check()
    assert frozen._fused is once, "made once"
    bias: Any = backbone.get_parameter("stages.1.0.bn2.bias")
    mean: Any = backbone.get_buffer("stages.0.1.running_mean")
    for change in (lambda: bias.add_(1), lambda: mean.mul_(2), backbone.double):
        change()
        photos = photos.to(bias.dtype)
        check()
        assert frozen._fused is not once
        once = frozen._fused
    backbone.float().load_state_dict(plain.state_dict())
    photos = photos.float()
    check()
    torch.testing.assert_close(backbone(photos), plain(photos))


def test_frozen_stages_of_an_encoder_are_its_backbones_alone(plain: Backbone) -> None:
    encoder = Encoder(copy.deepcopy(plain), trainable_from="blocks.1")
    names = list(encoder.state_dict())
    encoder.frozen_features(photos_of(64, 64))
    assert list(encoder.state_dict()) == names
    other = copy.deepcopy(encoder)
    with torch.no_grad():
        other.backbone.get_parameter("stages.0.1.bias").add_(1)
    photos = photos_of(64, 64)
    assert not torch.equal(other.frozen_features(photos), encoder.frozen_features(photos))
    decoder: Any = nn.Identity()
    encoder = inference_copy(CaptionModel(encoder, decoder), "cpu").encoder
    with torch.no_grad():
        assert torch.equal(encoder.frozen_features(photos), encoder.backbone.stages[:2](photos))
        expected = plain(photos).flatten(2).transpose(1, 2)
        torch.testing.assert_close(encoder(photos).features, expected, atol=1e-3, rtol=1e-3)


def test_under_autocast_frozen_stages_are_as_rough_as_the_rest(plain: Backbone) -> None:
    frozen, photos = FrozenStages(plain, 3), photos_of(64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        rough = frozen(photos)
        assert torch.is_autocast_enabled("cpu")
        with torch.no_grad():
            plainly = plain.stages[:3](photos)
    assert rough.dtype == torch.bfloat16
    assert not rough.requires_grad
    exact = frozen(photos)
    assert exact.dtype == torch.float32
    error = (rough - exact).std()
    assert 0 < error < 1.5 * (plainly - exact).std()
    assert error < 0.05 * exact.std()


def test_frozen_stages_of_other_networks_are_applied_themselves() -> None:
    resnet = build_backbone("resnet50", weights="none").eval()
    frozen, photos = FrozenStages(resnet, 2), photos_of(32, 32)
    with torch.no_grad():
        assert torch.equal(frozen(photos), resnet.stages[:2](photos))
    assert frozen._fused is None
