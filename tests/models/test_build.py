"""Settings to modules, and the way from photos through captions as one model."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from captioner.config import ModelConfig
from captioner.config.settings import LossConfig
from captioner.data.batch import Batch
from captioner.errors import ConfigError
from captioner.models.backbones.backbone import Preprocessing
from captioner.models.build import build_model, resolved
from captioner.models.model import CaptionModel
from captioner.training.cross_entropy import caption_losses

V = 12


def small_config(**changes: Any) -> ModelConfig:
    small = {"preprocess__width_px": 96, "encoder__project_dim": 8, "attention__dim": 6}
    small |= {"decoder__hidden_dim": 7, "decoder__embed_dim": 5}
    recipe = tiny.recipe(Path(), Path(), **{**small, **changes})
    return ModelConfig(**{field.name: getattr(recipe, field.name) for field in fields(ModelConfig)})


def small_model(**changes: Any) -> CaptionModel:
    torch.manual_seed(0)
    return build_model(small_config(**changes), V).eval()


def batch(captions: list[list[int]], image_index: list[int]) -> Batch:
    """The captions, the longest first, with their end tokens."""
    lengths = torch.tensor([len(words) + 1 for words in captions])
    targets = torch.zeros(len(captions), int(lengths.max()), dtype=torch.long)
    for row, words in enumerate(captions):
        targets[row, : len(words) + 1] = torch.tensor([*words, 2])
    return tiny.captions(targets, lengths, image_index=torch.tensor(image_index))


CAPTIONS = [[4, 5, 6, 7], [8, 9, 4], [5, 5, 5], [10]]
PHOTO_OF = [1, 0, 1, 2]


def photos() -> Tensor:
    return torch.randn(3, 3, 64, 96, generator=torch.Generator().manual_seed(1))


EVERYTHING = {
    "encoder__self_attention_layers": 1,
    "encoder__self_attention_heads": 2,
    "attention__select": "hard",
    "attention__window": "local_p",
    "attention__heads": 2,
}


@pytest.mark.parametrize("settings", [{}, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("kind", ["lstm", "luong", "top_down", "mean", "transformer"])
@torch.inference_mode()
def test_the_loss_of_a_caption_does_not_depend_on_its_neighbours(
    kind: str, settings: dict[str, Any]
) -> None:
    """Nor do the maps past its end, which would enter the doubly stochastic term."""
    model = small_model(decoder__kind=kind, decoder__gate="vector", decoder__heads=1, **settings)
    for parameter in model.encoder.self_attention.parameters() if settings else ():
        parameter.add_(0.1 * torch.randn_like(parameter))  # they begin as the identity

    def losses(of: list[int]) -> tuple[float, float]:
        """Sums over the captions, of the words' losses and of the penalties."""
        read = sorted({PHOTO_OF[row] for row in of})
        given = batch([CAPTIONS[row] for row in of], [read.index(PHOTO_OF[row]) for row in of])
        forced = model(model.encoder(photos()[read]), given)
        loss = LossConfig(doubly_stochastic=1.0, label_smoothing=0.1)
        parts, words = caption_losses(forced, given, loss), given.words
        assert parts["total"].item() == pytest.approx(
            parts["smoothed"].item() + parts["doubly_stochastic"].item() * len(of) / words, rel=1e-5
        )
        return parts["smoothed"].item() * words, parts["doubly_stochastic"].item() * len(of)

    alone = [losses([row]) for row in range(4)]
    for count in (2, 3, 4):
        for of in combinations(range(4), count):
            expected = [sum(alone[row][part] for row in of) for part in range(2)]
            assert losses(list(of)) == pytest.approx(expected, rel=1e-4)


FAMILY = {"decoder__heads": 1, "decoder__feedforward_dim": 6, "encoder__project_dim": 8}


@pytest.mark.parametrize(
    ("changes", "accepted"),
    [
        ({"attention__heads": 3}, "a divisor of 8"),  # of D
        ({"attention__heads": 4}, "a divisor of 6"),  # of attention.dim
        ({"attention__heads": 2, "attention__score": "general"}, "a divisor of 7"),  # of hidden_dim
        ({"decoder__heads": 2, "decoder__kind": "transformer"}, "a divisor of 7"),
        ({"encoder__self_attention_heads": 3, "encoder__self_attention_layers": 1}, "of 8"),
        ({"attention__temperature": 0.0}, "a number above 0"),
        ({"decoder__tie_embeddings": True, "decoder__output": "plain"}, "decoder.output: deep"),
    ],
    ids=str,
)
def test_unusable_settings_are_refused_with_their_key_and_the_accepted_values(
    changes: dict[str, Any], accepted: str
) -> None:
    small_model(**FAMILY)
    key = next(iter(changes)).replace("__", ".")
    message = tiny.sentence(ConfigError, small_model, **{**FAMILY, **changes})
    assert message.startswith(f"{key}: ")
    assert accepted in message


def test_counting_the_cells_of_a_grid_leaves_the_backbone_as_it_was() -> None:
    """Whose running statistics come with the pretrained weights."""
    plain, counted = small_model(), small_model(attention__score="location")
    assert counted.decoder.attention.score.query.out_features == 6
    expected = plain.encoder.backbone.state_dict()
    for name, value in counted.encoder.backbone.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_resolved_settings_take_from_the_backbone_only_those_not_given() -> None:
    model = small_model()
    model.encoder.backbone.preprocessing = Preprocessing((0.1,) * 3, (0.2,) * 3, "lanczos")
    config = small_config()
    assert resolved(config, model) == replace(
        config,
        preprocess=replace(
            config.preprocess, mean=(0.1,) * 3, std=(0.2,) * 3, interpolation="lanczos"
        ),
    )
    given = small_config(
        preprocess__mean=(0.0, 0.0, 0.0),
        preprocess__std=(1.0, 1.0, 1.0),
        preprocess__interpolation="bicubic",
    )
    assert resolved(given, model) == given
