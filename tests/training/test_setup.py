"""From a recipe to what training works with: refusals by name, data, cache, what may change."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from PIL import Image

from captioner.config.settings import SourceConfig
from captioner.errors import ConfigError
from captioner.training.run import changed_settings
from captioner.training.setup import Setup, prepare

CPU = torch.device("cpu")
HERE = Path("here")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tiny.draw_table(tmp_path / "photos")


def ready(table: Path, **changed: object) -> Setup:
    return prepare(tiny.recipe(table, table / "run", **changed), CPU)


def test_the_vocabulary_is_of_the_training_captions_alone(table: Path) -> None:
    rows = (table / "captions.csv").read_text()
    (table / "captions.csv").write_text(rows + "17.jpg,zebra zebra,test\n13.jpg,yak yak,val\n")
    setup = ready(table)
    assert "disc" in setup.vocabulary
    assert "zebra" not in setup.vocabulary
    assert "yak" not in setup.vocabulary
    assert len(setup.dataset.captions) == 24
    assert len(setup.validation.images) == 3


def test_one_validation_photo_has_no_cider(table: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.metric: CIDEr of a single validation photo"):
        ready(table, train__val_photos=1)
    assert len(ready(table, train__val_photos=1, train__metric="Bleu_4").validation.images) == 1


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({}, ""),
        ({"data__cache": "cache"}, "data.cache: one view"),
        ({"data__cache": "cache", "data__cache_views": 2}, ""),
        ({"data__min_count": 12}, "data.min_count: the vocabulary knows 71%"),
        ({"optim__warmup_steps": 7}, "optim.warmup_steps: training has about 6 steps"),
        ({"optim__warmup_steps": 6}, ""),
    ],
)
def test_settings_without_effect_are_reported(
    table: Path, changed: dict[str, object], reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "data__cache" in changed:
        changed = {**changed, "data__cache": str(table / "cache")}
    ready(table, **changed)  # 2 epochs of 6 batches, 2 a step
    lines = [
        line
        for line in capsys.readouterr().err.splitlines()
        if "caching" not in line and ": table " not in line
    ]
    assert len(lines) == bool(reported)
    assert all(line.startswith(reported) for line in lines)


def test_training_photos_are_augmented_and_validation_photos_are_not(table: Path) -> None:
    setup = ready(table)
    assert setup.dataset.transform.augmentation is not None
    assert setup.dataset.transform.augmentation.flip == 0.5
    assert setup.validation.transform.augmentation is None


def test_training_views_may_be_smaller_than_the_model_s_input(table: Path) -> None:
    setup = ready(table, data__view_scale=0.75, preprocess__height_px=64, preprocess__width_px=96)
    photo = Image.new("RGB", (40, 30))
    assert setup.dataset.transform(photo)[0].shape == (3, 48, 72)
    assert setup.validation.transform(photo)[0].shape == (3, 64, 96)


def test_the_same_seed_gives_the_same_first_weights(table: Path) -> None:
    one, same, other = ready(table), ready(table), ready(table, train__seed=2)
    for name, value in one.task.model.state_dict().items():
        assert torch.equal(same.task.model.state_dict()[name], value), name
    assert not torch.equal(
        other.task.model.decoder.word_gates.weight, one.task.model.decoder.word_gates.weight
    )


# -------------------------------------------------------------------------------- what may change


@pytest.mark.parametrize(
    ("key", "before", "after", "expected"),
    [
        ("decoder.hidden_dim", 16, 17, "fixed"),
        ("data.batch_size", 4, 5, "fixed"),
        ("data.sources", None, (SourceConfig(name="one"),), "fixed"),
        ("optim.name", "adam", "adamw", "fixed"),
        ("train.seed", 1, 2, "fixed"),
        ("data.cache", "here", None, "fixed"),
        ("data.cache", "here", "there", ""),
        ("data.root", "here", "there", ""),
        ("data.workers", 0, 1, ""),
        ("train.epochs", 1, 1, ""),
        ("train.epochs", 1, 2, "reported"),
        ("optim.lr", 0.1, 0.2, "reported"),
        ("loss.doubly_stochastic", 0.0, 1.0, "reported"),
    ],
)
def test_a_changed_setting_is_fixed_or_reported_or_of_no_consequence(
    key: str, before: object, after: object, expected: str
) -> None:
    old, new = (
        tiny.recipe(HERE, HERE, **{key.replace(".", "__"): value}) for value in (before, after)
    )
    fixed, reported = changed_settings(old, new)
    assert (fixed, reported) == ([key] * (expected == "fixed"), [key] * (expected == "reported"))
