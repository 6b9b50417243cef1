"""Each backbone's stages against the library's own feature extractor with the same weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models.feature_extraction import create_feature_extractor

from captioner.config import EncoderConfig
from captioner.models.backbones.backbone import Backbone, build_backbone
from captioner.models.backbones.sources import fold_batch_norms
from captioner.models.model import Encoder

# the paper's names, and torchvision's index of each one's ReLU
VGG_NAMES = [
    f"conv{b}_{i}" for b, count in enumerate((2, 2, 4, 4, 4), 1) for i in range(1, count + 1)
]
VGG_RELUS = (1, 3, 6, 8, 11, 13, 15, 17, 20, 22, 24, 26, 29, 31, 33, 35)
VGG_STAGES = dict(zip(VGG_NAMES, VGG_RELUS, strict=True))
RESNET_STAGES = {"stem": "maxpool"} | {f"layer{i}": f"layer{i}" for i in range(1, 5)}


def with_random_weights(network: nn.Module, seed: int = 0) -> nn.Module:
    """A network built on the meta device, made real; BatchNorm's statistics random as well."""
    torch.manual_seed(seed)
    network.to_empty(device="cpu")
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    module.bias.uniform_(-0.1, 0.1)
            elif isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.0)
                module.bias.uniform_(-0.1, 0.1)
                module.running_mean.uniform_(-0.1, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.num_batches_tracked.zero_()
    return network.eval()


def photos(height: int, width: int, count: int = 2) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


def pair(name: str, reference_part: str) -> tuple[Backbone, nn.Module]:
    """Ours and torchvision's with the same random weights, without torchvision's classifier."""
    with torch.device("meta"):
        ours = build_backbone(name, weights="none")
        theirs = models.get_model(name)
    theirs = getattr(theirs, reference_part) if reference_part else theirs
    with_random_weights(ours)
    state = dict(theirs.state_dict())
    own = {key: value for key, value in state.items() if not key.startswith("fc.")}
    copied = dict(zip(own, ours.state_dict().values(), strict=True))
    theirs.to_empty(device="cpu")
    theirs.load_state_dict(copied, strict=False)
    return ours, theirs.eval()


@torch.inference_mode()
def test_vgg19_is_torchvisions_at_every_stage() -> None:
    ours, theirs = pair("vgg19", "features")
    assert ours.names == list(VGG_STAGES)
    assert ours.channels == 512
    found = photos(32, 48)
    expected = create_feature_extractor(theirs, [str(index) for index in VGG_STAGES.values()])(
        found
    )
    for stage, index in enumerate(VGG_STAGES.values()):
        found = ours.stages[stage](found)
        assert found.max() > 0.1
        torch.testing.assert_close(found, expected[str(index)])
    assert found.shape == (2, 512, 2, 3)


@torch.inference_mode()
def test_resnet50_is_torchvisions_at_every_stage() -> None:
    ours, theirs = pair("resnet50", "")
    assert ours.names == list(RESNET_STAGES)
    inputs = photos(64, 96)
    expected = create_feature_extractor(theirs, list(RESNET_STAGES.values()))(inputs)
    for stop, name in enumerate(RESNET_STAGES.values(), start=1):
        found = ours.stages[:stop](inputs)
        assert found.std() > 1e-2
        torch.testing.assert_close(found, expected[name])


@pytest.mark.parametrize(
    ("name", "tap", "height", "width", "shape"),
    [
        ("vgg19", None, 224, 224, (512, 14, 14)),  # the paper's
        ("vgg19", "conv4_4", 224, 224, (512, 28, 28)),
        ("vgg19", None, 224, 352, (512, 14, 22)),
        ("resnet152", None, 64, 96, (2048, 2, 3)),
        ("efficientnet_lite2", None, 256, 256, (1280, 8, 8)),
        ("efficientnet_lite2", "blocks.4", 256, 320, (120, 16, 20)),
        ("timm/resnet18", None, 224, 320, (512, 7, 10)),
        # as many cells as the paper
        ("timm/resnet18", "3", 224, 224, (256, 14, 14)),
        ("timm/vit_base_patch16_clip_224.openai", None, 224, 224, (768, 14, 14)),
        ("timm/vit_tiny_patch16_224", None, 224, 352, (192, 14, 22)),
        ("timm/vit_small_patch14_reg4_dinov2", None, 224, 224, (384, 16, 16)),  # made for 518 px
        ("timm/vit_small_patch16_dinov3", None, 256, 224, (384, 16, 14)),
        ("timm/swin_tiny_patch4_window7_224", None, 256, 320, (768, 8, 10)),
    ],
)
def test_grids_have_the_known_shape(
    name: str, tap: str | None, height: int, width: int, shape: tuple[int, int, int]
) -> None:
    with torch.device("meta"):  # shapes and no values
        backbone = build_backbone(name, weights="none", tap=tap, size_px=(height, width))
        grid = Encoder(backbone, EncoderConfig()).eval()(torch.empty(2, 3, height, width))
    channels, rows, columns = shape
    assert backbone.channels == channels
    assert (grid.height, grid.width) == (rows, columns)
    assert grid.features.shape == (2, rows * columns, channels)


@torch.inference_mode()
def test_any_torchvision_network_is_tapped_at_its_last_feature_map() -> None:
    torch.manual_seed(0)
    ours = build_backbone("mobilenet_v3_small", weights="none").eval()
    theirs = models.mobilenet_v3_small()
    state = theirs.state_dict()
    own = [key for key in state if key.startswith("features.")]
    theirs.load_state_dict(dict(zip(own, ours.state_dict().values(), strict=True)), strict=False)
    inputs = photos(64, 96)
    assert ours.channels == 576
    assert ours.names == ["body"]
    torch.testing.assert_close(ours(inputs), theirs.eval().features(inputs))


NORMS_LEFT = {"efficientnet_lite2": 0, "resnet50": 0, "regnet_y_400mf": 0, "timm/resnet18": 17}


@pytest.mark.parametrize(("name", "left"), NORMS_LEFT.items())
@torch.inference_mode()
def test_batch_norms_are_folded_where_layers_are_in_order(name: str, left: int) -> None:
    network = build_backbone(name, weights="none", size_px=(64, 64))
    folded = copy.deepcopy(with_random_weights(network)).eval()
    fold_batch_norms(folded)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in folded.modules()) == left
    photos = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    expected = network(photos)
    torch.testing.assert_close(folded(photos), expected, atol=1e-4 * float(expected.max()), rtol=0)
