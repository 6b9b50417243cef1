"""Transformers of timm as encoders: their last layer's tokens are the grid."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from captioner.errors import ConfigError, WeightsError
from captioner.models.backbones.backbone import build_backbone


def images(height: int, width: int) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(3))


def weights_file(name: str, folder: Path) -> tuple[nn.Module, str]:
    """timm's own network with random weights, and a file of them as its hub has."""
    torch.manual_seed(5)
    network = timm.create_model(name).eval()
    with torch.no_grad():  # position embeddings begin near zero, where no mistake would show
        for parameter_name, parameter in network.named_parameters():
            if "pos" in parameter_name or "token" in parameter_name:
                parameter.normal_(std=0.5)
    path = folder / "model.safetensors"
    safetensors.torch.save_file(network.state_dict(), path)
    return network, str(path)


@pytest.mark.parametrize("name", ["test_vit", "test_vit4", "test_vit_relpos"])
@torch.inference_mode()
def test_cells_are_the_last_layers_tokens_without_class_and_registers(
    name: str, tmp_path: Path
) -> None:
    theirs, path = weights_file(name, tmp_path)
    ours = build_backbone(name, weights=path, size_px=(160, 160)).eval()
    inputs = images(160, 160)
    tokens = theirs.forward_features(inputs)
    others = {"test_vit": 1, "test_vit4": 1, "test_vit_relpos": 0}[name]
    assert tokens.shape[1] == 100 + others
    expected = tokens[:, others:].transpose(1, 2).unflatten(2, (10, 10))
    assert expected.std() > 0.1
    torch.testing.assert_close(ours(inputs), expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_swin_gives_its_normalised_map_row_by_row() -> None:
    torch.manual_seed(0)
    settings = {"embed_dim": 16, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)}
    theirs = timm.create_model("swin_tiny_patch4_window7_224", img_size=(224, 288), **settings)
    with torch.device("meta"):
        ours = build_backbone("swin_tiny_patch4_window7_224", weights="none", size_px=(224, 288))
    ours.stages[0].network = theirs.eval()  # a smaller one, with values
    inputs = images(224, 288)
    expected = theirs.forward_features(inputs).permute(0, 3, 1, 2)
    assert expected.shape == (2, 128, 7, 9)
    torch.testing.assert_close(ours(inputs), expected)


@torch.inference_mode()
def test_position_embeddings_are_interpolated_to_the_recipes_size(tmp_path: Path) -> None:
    theirs, path = weights_file("test_vit3", tmp_path)
    same = build_backbone("test_vit3", weights=path, size_px=(160, 160))
    wider = build_backbone("test_vit3", weights=path, size_px=(160, 224)).eval()
    own = dict(theirs.named_parameters())["pos_embed"]
    torch.testing.assert_close(same.state_dict()["stages.0.network.pos_embed"], own)
    found = wider.state_dict()["stages.0.network.pos_embed"]
    torch.testing.assert_close(found[:, :1], own[:, :1])  # the class token has no place
    expected = nn.functional.interpolate(
        own[:, 1:].unflatten(1, (10, 10)).permute(0, 3, 1, 2),
        size=(10, 14),
        mode="bicubic",
        antialias=True,
    ).permute(0, 2, 3, 1)
    torch.testing.assert_close(found[:, 1:], expected.flatten(1, 2))
    assert wider(images(160, 224)).shape == (2, wider.channels, 10, 14)


def test_a_file_of_weights_may_have_no_classifier_or_another(tmp_path: Path) -> None:
    theirs, _ = weights_file("test_vit", tmp_path)
    state = {k: v for k, v in theirs.state_dict().items() if not k.startswith("head.")}
    path, size = str(tmp_path / "weights.pth"), (160, 160)
    dino = {"teacher": {f"backbone.{name}": value for name, value in state.items()}}
    for content in (state, {**state, "head.weight": torch.ones(10, 64)}, dino):
        torch.save(content, path)
        found = build_backbone("test_vit", weights=path, size_px=size).state_dict()
        assert torch.equal(found["stages.0.network.pos_embed"], state["pos_embed"])
    torch.save({name: x for name, x in state.items() if name != "norm.weight"}, path)
    with pytest.raises(WeightsError, match=r'\(Missing key.*: "norm\.weight"'):
        build_backbone("test_vit", weights=path, size_px=size)


@pytest.mark.parametrize("size_px", [(224, 230), (100, 224)])
def test_sizes_that_leave_part_of_a_patch_are_refused(size_px: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=r"^preprocess: .* multiples of 16, not \d+ and \d+$"):
        build_backbone("timm/vit_tiny_patch16_224", weights="none", size_px=size_px)
