"""Where weights come from, and the one sentence that a user gets where they cannot be had."""

from __future__ import annotations

import json
import pickle
import re
import urllib.error
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import timm
import torch
from tiny import sentence
from torch import nn
from torchvision import models

from captioner.config.recipes import read_recipe, shipped_recipes
from captioner.errors import CaptionerError, ConfigError, WeightsError
from captioner.models.backbones.backbone import build_backbone

# a torchvision, a timm and our default network, all small
NETWORKS = ["squeezenet1_1", "timm/test_resnet", "efficientnet_lite2"]


def network_of(name: str) -> nn.Module:
    """The library's own network, with random weights."""
    torch.manual_seed(3)
    if name.startswith("timm/"):
        return timm.create_model(name.removeprefix("timm/"))
    if name == "efficientnet_lite2":
        return timm.create_model("tf_efficientnet_lite2")
    return models.get_model(name)


LAYOUTS = {
    "its own": lambda state: state,
    "a checkpoint": lambda state: {"epoch": 3, "state_dict": state},
    "DataParallel": lambda state: {f"module.{key}": value for key, value in state.items()},
    "an encoder": lambda state: {
        **{f"encoder.backbone.{key}": value for key, value in state.items()},
        "decoder.embedding.weight": torch.zeros(4, 2),
    },
    "other classes": lambda state: {
        key: value[:2] if key.startswith(("fc.", "classifier.", "head.")) else value
        for key, value in state.items()
    },
}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *(("timm/test_resnet", layout) for layout in LAYOUTS),
        *((name, layout) for name in NETWORKS[::2] for layout in ("its own", "other classes")),
    ],
)
def test_weights_of_other_programs_are_loaded(name: str, layout: str, tmp_path: Path) -> None:
    state = network_of(name).state_dict()
    if layout == "its own":
        path = str(tmp_path / "weights.safetensors")
        safetensors.torch.save_file(state, path)
    else:
        path = str(tmp_path / "weights.pth")
        torch.save(LAYOUTS[layout](state), path)
    found = build_backbone(name, weights=path).state_dict().values()
    assert len(found) > 20
    expected = [v for k, v in state.items() if not k.startswith(("fc.", "classifier.", "head."))]
    assert all(torch.equal(own, theirs) for own, theirs in zip(found, expected, strict=False))


@pytest.mark.parametrize("kind", ["another network", "no weights", "unsafe"])
@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_a_wrong_file_is_named_in_one_sentence(suffix: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"wrong.{suffix}"
    if kind == "another network":
        state = {f"features.{i}.weight": torch.zeros(2) for i in range(3)}
        torch.save(state, path) if suffix == "pth" else safetensors.torch.save_file(state, path)
    elif kind == "unsafe":
        path.write_bytes(pickle.dumps(Path("x")))
    else:
        path.write_bytes(b"<html>not found</html>" * 9)
    given = {"weights": str(path)}
    assert str(path) in sentence(WeightsError, build_backbone, "efficientnet_lite2", **given)


def test_offline_one_sentence_names_the_file_to_supply(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("Temporary failure in name resolution")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    monkeypatch.setattr(timm.models._builder, "load_state_dict_from_hf", refuse)
    monkeypatch.setattr(timm.models._builder, "load_state_dict_from_url", refuse)
    url = models.ResNet50_Weights.DEFAULT.url
    for name, file in (("resnet50", url), ("timm/resnet18", "timm/resnet18.")):
        message = sentence(WeightsError, build_backbone, name, weights="default")
        assert file in message
        assert "encoder.weights" in message


KNOWN = "efficientnet_lite2, vgg19, resnet50, resnet101, resnet152"


@pytest.mark.parametrize(
    ("name", "options", "facts"),
    [
        ("resnet5O", {}, ["encoder.backbone: there is no network 'resnet5O'", KNOWN]),
        ("timm/nothing", {}, ["encoder.backbone: there is no network", KNOWN]),
        ("efficientnet_lite2", {"tap": "blocks.7"}, ["encoder.tap: ", "blocks.6, head"]),
        ("squeezenet1_1", {"tap": "features.99"}, ["encoder.tap: ", "classifier.1"]),
        ("timm/test_resnet", {"tap": "layer3"}, ["encoder.tap: ", "number of a feature map"]),
        ("timm/test_resnet", {"tap": "9"}, ["encoder.tap: ", "fewer than 9 feature maps"]),
        ("timm/test_vit", {"tap": "1"}, ["encoder.tap: ", "takes only null"]),
        *((name, {"weights": "no.pth"}, ["encoder.weights: 'no.pth' is neither a file nor an entry"])
          for name in NETWORKS),
        ("squeezenet1_1", {"weights": "V9"}, ["encoder.weights: 'V9'", "none", "IMAGENET1K_V1"]),
        ("timm/mixer_s32_224", {"size_px": (64, 64)},
         ["encoder.backbone: ", "64 x 64 px; use a convolutional network"]),
    ],
)  # fmt: skip
def test_what_there_is_not_is_refused_with_what_there_is(
    name: str, options: dict[str, Any], facts: list[str]
) -> None:
    with torch.device("meta"):
        message = sentence(ConfigError, build_backbone, name, **{"weights": "none", **options})
    assert message.startswith(facts[0])
    assert [fact for fact in facts if fact not in message] == []


REVISION = "0123456789abcdef0123456789abcdef01234567"


def test_timm_weights_are_pinned_by_a_revision_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cache of the Hub that holds two revisions, and no network."""
    hub = tmp_path / "models--timm--test_resnet.r160_in1k"
    network = timm.create_model("test_resnet")
    config = {"architecture": "test_resnet", "pretrained_cfg": network.pretrained_cfg}
    for revision, factor in ((REVISION, 2.0), (REVISION[::-1], 3.0)):
        folder = hub / "snapshots" / revision
        folder.mkdir(parents=True)
        state = {
            name: torch.full_like(value, factor) for name, value in network.state_dict().items()
        }
        safetensors.torch.save_file(state, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config, default=str))
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text(REVISION[::-1])

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def total(weights: str) -> float:
        network = build_backbone("timm/test_resnet", weights=weights)
        return sum(parameter.sum().item() for parameter in network.parameters())

    assert total(f"default@{REVISION}") / total("default") == pytest.approx(2 / 3)
    with pytest.raises(CaptionerError, match="the weights of test_resnet cannot be had"):
        total("default@" + "f" * 40)


@pytest.mark.parametrize("recipe", shipped_recipes())
def test_what_a_recipe_downloads_is_pinned(recipe: str) -> None:
    """timm's weights by a commit; torchvision's by the hash in the file's name, which it checks."""
    encoder = read_recipe(recipe).encoder
    name = encoder.backbone.rpartition("/")[2]
    if name == "efficientnet_lite2":
        assert encoder.weights == "default"  # a package, which the lock file pins
    elif name in models.list_models():
        entries = models.get_model_weights(name)
        entry = entries.DEFAULT if encoder.weights == "default" else entries[encoder.weights]
        assert re.search(r"-[0-9a-f]{8,}\.pth$", entry.url)
    else:
        assert re.fullmatch("default@[0-9a-f]{40}", encoder.weights)
