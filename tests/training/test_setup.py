"""From a recipe to what training works with: refusals by name, data, cache, what may change."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from PIL import Image

from captioner.checkpoint import load_model
from captioner.checkpoint_writer import save_model
from captioner.config.settings import Config, SourceConfig
from captioner.data.images import open_image
from captioner.data.tokenizers import CharacterTokenizer
from captioner.data.vocabulary import Vocabulary
from captioner.errors import CheckpointError, ConfigError, DataError
from captioner.models.build import build_model
from captioner.training import setup, train
from captioner.training.run import changed_settings
from captioner.training.setup import Setup, prepare

CPU = torch.device("cpu")
HERE = Path("here")


@pytest.fixture
def own_table(tmp_path: Path) -> Path:
    return tiny.draw_table(tmp_path / "photos")


def ready(own_table: Path, **changed: object) -> Setup:
    return prepare(tiny.recipe(own_table, own_table / "run", **changed), CPU)


def test_the_vocabulary_is_of_the_training_captions_alone(own_table: Path) -> None:
    rows = (own_table / "captions.csv").read_text()
    (own_table / "captions.csv").write_text(rows + "17.jpg,zebra zebra,test\n13.jpg,yak yak,val\n")
    setup = ready(own_table)
    assert "disc" in setup.vocabulary
    assert "zebra" not in setup.vocabulary
    assert "yak" not in setup.vocabulary
    assert len(setup.dataset.captions) == 24
    assert len(setup.validation.images) == 3


def test_one_validation_photo_has_no_cider(own_table: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.metric: CIDEr of a single validation photo"):
        ready(own_table, train__val_photos=1)
    assert len(ready(own_table, train__val_photos=1, train__metric="Bleu_4").validation.images) == 1


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({}, ""),
        ({"data__min_count": 12}, "data.min_count: the vocabulary knows 71%"),
        ({"optim__warmup_steps": 7}, "optim.warmup_steps: training has about 6 steps"),
        ({"optim__warmup_steps": 6}, ""),
    ],
)
def test_settings_without_effect_are_reported(
    own_table: Path, changed: dict[str, object], reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ready(own_table, **changed)  # 2 epochs of 6 batches, 2 a step
    lines = [x for x in capsys.readouterr().err.splitlines() if ": table " not in x]
    assert len(lines) == bool(reported)
    assert all(line.startswith(reported) for line in lines)


def test_training_photos_are_augmented_in_smaller_views_and_validation_photos_are_not(
    own_table: Path,
) -> None:
    setup = ready(own_table, data__view_scale=0.75, preprocess__width_px=96)
    assert setup.dataset.transform.augmentation.flip == 0.5
    assert setup.validation.transform.augmentation is None
    photo = Image.new("RGB", (40, 30))
    assert setup.dataset.transform(photo)[0].shape == (3, 48, 72)
    assert setup.validation.transform(photo)[0].shape == (3, 64, 96)


@pytest.fixture(scope="module")
def before(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model with a vocabulary that the table alone would not give."""
    run = tmp_path_factory.mktemp("runs") / "before"
    return train(tiny.recipe(table, run, train__epochs=1, data__min_count=6, train__seed=7))


def starting_from(start: Path, table: Path, tmp_path: Path, **changed: Any) -> Config:
    return tiny.recipe(table, tmp_path / "run", train__start_from=str(start), **changed)


def test_vocabulary_and_weights_are_those_of_the_start(table: Path, tmp_path: Path, before) -> None:
    fresh = prepare(tiny.recipe(table, tmp_path / "run"), CPU)
    started = prepare(starting_from(before, table, tmp_path), CPU)
    model, _, vocabulary = load_model(before)
    known, words = len(vocabulary), len(fresh.vocabulary)
    assert started.vocabulary.tokens[:known] == vocabulary.tokens
    assert set(started.vocabulary.tokens) == set(fresh.vocabulary.tokens)
    assert words > known, "the words that it lacks come after its own"
    expected = model.state_dict()
    of_words = set()
    for name, value in started.task.model.state_dict().items():
        if value.shape != expected[name].shape:
            of_words.add(name)
            assert len(value) == words
            value = value[:known]
        assert torch.equal(value, expected[name]), name
    assert of_words == {
        f"decoder.{name}" for name in ("embedding.weight", "vocabulary.weight", "vocabulary.bias")
    }
    characters = Vocabulary(vocabulary.words, CharacterTokenizer())
    save_model(tmp_path / "characters", *load_model(before)[:2], characters, card="#")
    started = prepare(starting_from(tmp_path / "characters", table, tmp_path), CPU)
    assert started.vocabulary.tokenizer.name == "characters"


def test_its_vocabulary_alone_begins_with_new_weights(table: Path, tmp_path: Path, before) -> None:
    no_new_words = {"data__min_count": 1000}
    recipe = starting_from(before, table, tmp_path, train__start_with="vocabulary", **no_new_words)
    started = prepare(recipe, CPU)
    model, _, vocabulary = load_model(before)
    assert started.vocabulary.tokens == vocabulary.tokens
    torch.manual_seed(recipe.train.seed)
    expected = build_model(recipe, len(vocabulary)).state_dict()
    weights = started.task.model.state_dict()
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name
    name = "decoder.embedding.weight"
    assert not torch.equal(weights[name], model.state_dict()[name])


def test_a_start_that_is_not_there_or_reads_otherwise_is_refused_by_its_setting(
    table: Path, tmp_path: Path, before
) -> None:
    characters = starting_from(before, table, tmp_path, data__tokenizer="characters")
    with pytest.raises(ConfigError, match=r"data.tokenizer: .* reads words, not characters"):
        prepare(characters, CPU)
    with pytest.raises(CheckpointError, match=r"train.start_from: there is no model '.*none'"):
        prepare(starting_from(tmp_path / "none", table, tmp_path), CPU)


def test_captions_with_few_known_words_are_reported_and_with_none_refused(
    table: Path, tmp_path: Path, before, capsys
) -> None:
    french = tmp_path / "french"
    shutil.copytree(table, french)
    recipe = starting_from(before, french, tmp_path, data__min_count=1000)  # no new words
    heading, *rows = (table / "captions.csv").read_text().splitlines()

    def write(caption: str) -> None:
        cells = (row.split(",") for row in rows)
        lines = (",".join([photo, caption, *rest]) for photo, _, *rest in cells)
        (french / "captions.csv").write_text("\n".join([heading, *lines]) + "\n")

    write("un deux trois disc")
    prepare(recipe, CPU)
    assert f"{before}: the vocabulary knows 25% of the words" in capsys.readouterr().err
    write("un deux trois")
    with pytest.raises(DataError, match="knows none of the words"):
        prepare(recipe, CPU)


def test_the_cache_holds_features_of_the_weights_started_from(
    table: Path, tmp_path: Path, before
) -> None:
    model, config, vocabulary = load_model(before)
    with torch.no_grad():
        for parameter in model.encoder.backbone.parameters():
            parameter.mul_(1.5)
    save_model(tmp_path / "changed", model, config, vocabulary, card="#")
    cache = {"data__cache": str(tmp_path / "cache")}
    prepare(starting_from(before, table, tmp_path, **cache), CPU)  # a cache of other weights
    found = prepare(starting_from(tmp_path / "changed", table, tmp_path, **cache), CPU).validation
    photo = found.transform(open_image(found.images[0].path))[0]
    seen = model.encoder.eval().frozen_features(photo.unsqueeze(0))[0]
    torch.testing.assert_close(found.cache.read(0, 0).float(), seen, rtol=2e-3, atol=2e-3)


def test_a_resumed_run_no_longer_needs_the_model_that_it_began_with(
    table: Path, tmp_path: Path, before
) -> None:
    shutil.copytree(before, tmp_path / "start")
    recipe = starting_from(tmp_path / "start", table, tmp_path, train__epochs=1)
    train(recipe)
    once = load_model(tmp_path / "run" / "last")[0].state_dict()
    shutil.rmtree(tmp_path / "start")
    train(replace(recipe, train=replace(recipe.train, epochs=2)), resume=True)
    twice = load_model(tmp_path / "run" / "last")[0].state_dict()
    assert any(not torch.equal(once[name], twice[name]) for name in once)


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


def test_all_cores_but_one_read_for_a_gpu_unless_shared_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def counted(asked: int | None, device: str, cores: int, processes: int = 1) -> int:
        monkeypatch.setattr(setup, "available_cores", lambda: cores)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        return setup.reading_processes.__wrapped__(asked, torch.device(device))

    monkeypatch.setattr(setup, "READING_BYTES", 0)
    assert [counted(None, "cuda", cores) for cores in (1, 16, 99)] == [1, 15, 16]
    assert counted(None, "cuda", 128, processes=8) == 15
    assert [counted(None, "cpu", cores) for cores in (1, 8)] == [0, 1]
    assert [counted(asked, "cuda", 2) for asked in (0, 4)] == [0, 2]
    assert not capsys.readouterr().err
    monkeypatch.setattr(setup, "READING_BYTES", 1 << 60)
    assert [counted(asked, "cuda", 16) for asked in (None, 4)] == [0, 4]
    assert "--shm-size" in capsys.readouterr().err
