"""From a recipe to what training works with: refusals by name, data, cache, what may change."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
import tiny
import torch

from captioner.config import Config, SourceConfig, validate
from captioner.errors import CaptionerError, ConfigError, DataError
from captioner.training.run import changed_settings
from captioner.training.setup import Setup, prepare

CPU = torch.device("cpu")
HERE = Path("here")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tiny.draw_table(tmp_path / "photos")


def ready(table: Path, **changed: object) -> Setup:
    return prepare(tiny.recipe(table, table / "run", **changed), CPU)


NAN = float("nan")
REFUSED = {
    "data__min_count": [0, -1],
    "data__max_words": [0],
    "data__batch_size": [0, -4],
    "data__workers": [-1],
    "data__cache_views": [0],
    "data__cache_min_area": [0.0, 0.5, 1.5, NAN],  # 0.5: there is no cache
    "data__flip": [-0.1, 1.1, NAN],
    "data__min_area": [0.0, 1.1, NAN],
    "data__colour": [-0.1, 1.5, NAN],
    "preprocess__height_px": [0, -64],
    "preprocess__width_px": [0],
    "preprocess__std": [(0.0, 1.0, 1.0), (NAN, 1.0, 1.0)],
    "encoder__project_dim": [0],
    "encoder__dropout": [1.0, -0.1, NAN],
    "attention__dim": [0],
    "decoder__hidden_dim": [0],
    "decoder__embed_dim": [0],
    "decoder__dropout": [1.0, -0.1, NAN],
    "decoder__embed_dropout": [1.0],
    "loss__doubly_stochastic": [-1.0, NAN],
    "loss__label_smoothing": [1.0, -0.1, NAN],
    "optim__lr": [0.0, -1e-3, NAN, float("inf")],
    "optim__encoder_lr": [0.0],
    "optim__weight_decay": [-0.1, NAN],
    "optim__plateau_epochs": [0, -1],
    "optim__warmup_steps": [-1],
    "optim__clip_norm": [-1.0, NAN],
    "optim__accumulate": [0],
    "optim__ema_decay": [1.0, -0.1, NAN],
    "train__epochs": [0],
    "train__seed": [-1, 2**63],
    "train__patience": [-1],
    "train__val_beam_size": [0],
    "train__val_photos": [0],
    "train__checkpoint_every": [-1],
    "train__log_every": [0],
    "train__samples": [-1],
    "decoding__beam_size": [0],
    "decoding__max_words": [0],
    "decoding__length_penalty": [NAN],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values]
)
def test_a_number_that_is_no_use_is_refused_by_its_key_before_anything_is_done(
    table: Path, name: str, value: object
) -> None:
    with pytest.raises(ConfigError) as caught:
        ready(table, **{name: value})
    message = str(caught.value)
    assert message.startswith(name.replace("__", ".") + ":")
    assert "\n" not in message


def test_learned_positions_have_to_reach_the_longest_caption_before_anything_is_done(
    table: Path,
) -> None:
    learned = {
        "decoder__kind": "transformer",
        "decoder__positions": "learned",
        "decoder__heads": 2,
        "decoder__max_positions": 9,
        "decoding__max_words": 9,
    }
    ready(table, **learned, data__max_words=8)
    with pytest.raises(ConfigError, match=r"decoder\.max_positions: 9 .* use 10 or more"):
        ready(table, **learned, data__max_words=9)


def test_an_unreadable_text_is_reported_before_the_cache_is_made(
    table: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(DataError, match=r"no\.tsv"):
        ready(table, data__cache=str(cache), text__file=str(tmp_path / "no.tsv"))
    assert not cache.exists()


def test_the_defaults_and_this_recipe_are_accepted() -> None:
    validate(Config())
    validate(tiny.recipe(HERE, HERE))


def test_the_vocabulary_is_of_the_training_captions_alone(table: Path) -> None:
    rows = (table / "captions.csv").read_text()
    (table / "captions.csv").write_text(rows + "17.jpg,zebra zebra,test\n13.jpg,yak yak,val\n")
    setup = ready(table)
    assert "disc" in setup.vocabulary
    assert "zebra" not in setup.vocabulary
    assert "yak" not in setup.vocabulary
    assert len(setup.dataset) == 24
    assert len(setup.validation) == 3


def test_too_rare_words_leave_one_sentence(table: Path) -> None:
    with pytest.raises(DataError, match="lower data.min_count"):
        ready(table, data__min_count=1000)


def test_one_validation_photo_has_no_cider(table: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.metric: CIDEr of a single validation photo"):
        ready(table, train__val_photos=1)
    assert len(ready(table, train__val_photos=1, train__metric="Bleu_4").validation) == 1


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({}, ""),
        ({"data__cache": "cache"}, "data.cache: one view"),
        ({"data__cache": "cache", "data__cache_views": 2}, ""),
        ({"data__cache": "cache", "data__cache_min_area": 0.5}, ""),
        ({"data__cache_views": 2}, "data.cache_views: no cache"),
        ({"text__cells": 3}, "text: nothing is read"),
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
    lines = [line for line in capsys.readouterr().err.splitlines() if "caching" not in line]
    assert len(lines) == bool(reported)
    assert all(line.startswith(reported) for line in lines)


def test_training_photos_are_augmented_and_validation_photos_are_not(table: Path) -> None:
    setup = ready(table)
    assert setup.dataset.transform.augmentation is not None
    assert setup.dataset.transform.augmentation.flip == 0.5
    assert setup.validation_transform.augmentation is None


def test_val_photos_takes_the_first_so_many(table: Path) -> None:
    whole = ready(table).validation
    assert ready(table, train__val_photos=2).validation == whole[:2]


def test_the_preprocessing_of_the_backbone_is_written_out(table: Path) -> None:
    preprocess = ready(table).config.preprocess
    assert None not in (preprocess.mean, preprocess.std, preprocess.interpolation)
    given = ready(table, preprocess__mean=(0.1, 0.2, 0.3)).config.preprocess
    assert given.mean == (0.1, 0.2, 0.3)
    assert given.std == preprocess.std


def test_the_same_seed_gives_the_same_first_weights(table: Path) -> None:
    one, same, other = ready(table), ready(table), ready(table, train__seed=2)
    for name, value in one.task.model.state_dict().items():
        assert torch.equal(same.task.model.state_dict()[name], value), name
    assert not torch.equal(
        other.task.model.decoder.word_gates.weight, one.task.model.decoder.word_gates.weight
    )


def test_missing_photos_are_named_and_counted(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(11):
        (table / f"{number:02d}.jpg").unlink()
    assert len(ready(table).dataset) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"{table / '00.jpg'}: no such file, left out"
    assert len(lines) == 11
    assert lines[-1] == "train: 11 of 12 photos are missing"


def test_the_cache_needs_frozen_stages(table: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data.cache: nothing is frozen"):
        ready(table, data__cache=str(table / "cache"), encoder__trainable_from="conv1")


def test_a_damaged_photo_is_named_when_the_cache_is_made_and_when_it_is_read_again(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (table / "03.jpg").write_bytes(b"damaged")
    (table / "13.jpg").write_bytes(b"damaged")
    for _ in range(2):
        setup = ready(table, data__cache=str(table / "cache"), data__cache_views=2)
        lines = capsys.readouterr().err.splitlines()
        named = sorted(line.partition(":")[0] for line in lines if "left out" in line)
        assert named == [str(table / "03.jpg"), str(table / "13.jpg")]
    assert setup.dataset.cache is not None
    assert setup.dataset.cache.views == 2


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({"data__root": "no/such/folder"}, "no/such/folder"),
        ({"data__train_split": "dev"}, "'dev'"),
        ({"data__val_split": "dev"}, "'dev'"),
        ({"encoder__backbone": "no_such_network"}, "encoder.backbone"),
        ({"encoder__weights": "no/such/file.pth"}, "encoder.weights"),
        ({"encoder__trainable_from": "no_such_stage"}, "encoder.trainable_from"),
        ({"decoder__tie_embeddings": True, "decoder__embed_dim": 8, "decoder__output": "plain"},
         "decoder.tie_embeddings"),
    ],
)  # fmt: skip
def test_missing_files_are_named(table: Path, changed: dict[str, object], reported: str) -> None:
    with pytest.raises(CaptionerError) as caught:
        ready(table, **changed)
    assert reported in str(caught.value)
    assert "\n" not in str(caught.value)


# -------------------------------------------------------------------------------- what may change


def settings() -> list[str]:
    """Every setting there is, as section.key."""
    config = tiny.recipe(HERE, HERE)
    sections = [field.name for field in fields(config) if is_dataclass(getattr(config, field.name))]
    return [f"{s}.{field.name}" for s in sections for field in fields(getattr(config, s))]


def another(value: object) -> object:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, (int, float)) else "another"


def test_nothing_changed_is_no_change() -> None:
    assert changed_settings(tiny.recipe(HERE, HERE), tiny.recipe(HERE, HERE)) == ([], [])


@pytest.mark.parametrize("key", settings())
def test_every_setting_is_fixed_or_reported_or_of_no_consequence(key: str) -> None:
    before = tiny.recipe(HERE, HERE)
    section, name = key.split(".")
    value = another(getattr(getattr(before, section), name))
    if key == "data.sources":
        value = (SourceConfig(name="one"),)
    fixed, reported = changed_settings(
        before, tiny.recipe(HERE, HERE, **{f"{section}__{name}": value})
    )
    assert [*fixed, *reported] in ([], [key])
    model = section in ("preprocess", "encoder", "attention", "decoder")
    if model or key in (
        "optim.name",
        "train.seed",
        "data.batch_size",
        "data.cache",
        "data.sources",
    ):
        assert fixed == [key], "other weights would not fit, or other batches would come"
    if key in ("optim.lr", "train.epochs", "loss.doubly_stochastic", "optim.accumulate"):
        assert reported == [key]
    if key in ("data.workers", "data.root", "train.output", "train.log_every", "train.device"):
        assert [fixed, reported] == [[], []]


@pytest.mark.parametrize(
    ("key", "before", "after", "expected"),
    [
        ("optim.ema_decay", 0.0, 0.9, "fixed"),
        ("optim.ema_decay", 0.9, 0.0, "fixed"),
        ("optim.ema_decay", 0.9, 0.99, "reported"),
        ("data.cache", "here", None, "fixed"),
        ("loss.visual_concepts", 0.0, 0.5, "fixed"),
        ("loss.visual_concepts", 0.3, 0.5, "reported"),
        ("text.file", None, "there", "fixed"),
        ("text.file", "here", "there", "reported"),
        ("data.cache", "here", "there", ""),
    ],
)
def test_which_settings_may_change_depends_on_their_first_values(
    key: str, before: object, after: object, expected: str
) -> None:
    old, new = (
        tiny.recipe(HERE, HERE, **{key.replace(".", "__"): value}) for value in (before, after)
    )
    fixed, reported = changed_settings(old, new)
    assert (fixed, reported) == ([key] * (expected == "fixed"), [key] * (expected == "reported"))
