"""Words as cells: the noisy-or, the grid of words, and a run that learns from both."""

from __future__ import annotations

import json
import math
from pathlib import Path

import plain
import pytest
import tiny
import torch
from cuts import interrupt
from torch.nn import functional as F

from captioner.checkpoint import load_training_state
from captioner.errors import DataError
from captioner.training import train
from captioner.training.word_concepts import WordConceptTable

V, D = 5, 4


@pytest.fixture
def concepts() -> WordConceptTable:
    torch.manual_seed(0)
    concepts = WordConceptTable(V, D).double()
    with torch.no_grad():
        concepts.bias.normal_()
        concepts.norm.weight.normal_()
    return concepts


def test_the_loss_is_the_noisy_or_of_the_cells_in_a_plain_loop(concepts: WordConceptTable) -> None:
    features = torch.randn(2, 3, D, dtype=torch.float64)
    seen = [[True, False, False, True, False], [False, False, True, False, False]]
    vectors = concepts.norm(concepts.words.weight).tolist()
    total = 0.0
    for cells, words in zip(features.tolist(), seen, strict=True):
        for word in range(V):
            absent = 1.0
            for cell in cells:
                logit = plain.dot(cell, vectors[word]) / D**0.5 + concepts.bias[word].item()
                absent *= 1 - plain.sigmoid(logit)
            total -= math.log(1 - absent if words[word] else absent)
    found = concepts.detection_loss(features, torch.tensor(seen))
    assert found.item() == pytest.approx(total / 3, rel=1e-5)


def test_a_word_that_no_cell_or_every_cell_shows_has_a_finite_gradient(
    concepts: WordConceptTable,
) -> None:
    for bias in (-200.0, 200.0):
        with torch.no_grad():
            concepts.bias.fill_(bias)
        features = torch.randn(1, 3, D, dtype=torch.float64, requires_grad=True)
        for seen in (torch.ones(1, V), torch.zeros(1, V)):
            loss = concepts.detection_loss(features, seen.bool())
            (gradient,) = torch.autograd.grad(loss, features)
            assert torch.isfinite(loss)
            assert torch.isfinite(gradient).all()


def test_words_make_a_grid_like_the_encoder_s_projection(concepts: WordConceptTable) -> None:
    grid = concepts.as_grid(torch.tensor([[4, 0, 4], [1, 2, 3]]))
    assert (grid.height, grid.width) == (1, 3)
    expected = torch.relu(
        F.layer_norm(concepts.words.weight[4], (D,), concepts.norm.weight, concepts.norm.bias)
    )
    assert torch.allclose(grid.features[0, 0], expected)
    assert torch.equal(grid.features[0, 0], grid.features[0, 2])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.draw_table(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "captions.tsv"
    captions = ("a red disc on the field", "a square on the green field")
    lines = [f"{photo}\t{caption}" for photo in range(9) for caption in captions]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def learning(texts: Path) -> dict[str, object]:
    return {"text__file": str(texts), "text__batch_size": 6, "loss__visual_concepts": 0.5}


def test_text_and_concepts_add_to_the_loss_of_the_captions(
    table: Path, texts: Path, tmp_path: Path
) -> None:
    train(tiny.recipe(table, tmp_path / "run", **learning(texts), train__epochs=20))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [entry for entry in map(json.loads, lines) if entry["kind"] == "train"]
    for part in ("cross_entropy", "visual_concepts", "text_cross_entropy"):
        first, last = (sum(step[part] for step in some) for some in (steps[:4], steps[-4:]))
        assert last < 0.95 * first, part


def test_a_resumed_run_goes_on_with_the_next_text_and_the_same_concepts(
    table: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(tiny.recipe(table, whole, **learning(texts)))
    recipe = tiny.recipe(table, cut, **learning(texts))
    interrupt(monkeypatch, "validate", 1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        train(recipe)
    train(recipe, resume=True)
    ends = [load_training_state(run / "last")["task"] for run in (whole, cut)]
    texts_read = [end.pop("word_concepts._extra_state") for end in ends]
    assert texts_read[0] == texts_read[1] > 0
    assert "word_concepts.table.words.weight" in ends[0]
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name
    files = [(run / "last" / "model.safetensors").read_bytes() for run in (whole, cut)]
    assert files[0] == files[1]


def test_a_text_file_that_cannot_be_read_ends_in_one_sentence(table: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.tsv cannot be read"):
        train(tiny.recipe(table, tmp_path / "run", text__file=str(tmp_path / "none.tsv")))
