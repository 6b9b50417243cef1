"""A run that begins with the weights of another model."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from captioner.checkpoint import load_model, save_model
from captioner.config.settings import Config
from captioner.data.images import open_image
from captioner.errors import DataError
from captioner.models.build import build_model
from captioner.training import train
from captioner.training.setup import prepare

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def before(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model with a vocabulary that the table alone would not give."""
    run = tmp_path_factory.mktemp("runs") / "before"
    recipe = tiny.recipe(table, run, train__epochs=1, data__min_count=6, train__seed=7)
    return train(recipe)


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
    found = prepare(starting_from(tmp_path / "changed", table, tmp_path, **cache), CPU).validation
    assert found.cache is not None
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
