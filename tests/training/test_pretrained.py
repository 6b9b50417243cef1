"""Training begins with the weights of another model: by name and shape, words row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch

from captioner.checkpoint_writer import save_model
from captioner.data.vocabulary import Vocabulary
from captioner.models.build import build_model
from captioner.models.model import CaptionModel
from captioner.training.pretrained import load_pretrained


def with_vocabulary(words: list[str], *, tie: bool) -> tuple[CaptionModel, Vocabulary]:
    _, config, _ = tiny.model(tie_embeddings=tie)
    vocabulary = Vocabulary(words)
    return build_model(config, len(vocabulary)), vocabulary


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("was_tied", [False, True])
def test_a_model_with_more_words_takes_the_known_ones_row_by_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tied: bool, was_tied: bool
) -> None:
    before, config, known = tiny.model(tie_embeddings=was_tied)
    save_model(tmp_path / "start", before, config, known, card="#")
    words = ["zebra", *reversed(known.words), "yak", "xylophone"]  # other order, other size
    model, vocabulary = with_vocabulary(words, tie=tied)
    load_pretrained(model, vocabulary, tmp_path / "start")
    assert not capsys.readouterr().err  # every weight is taken
    old, new = before.state_dict(), model.state_dict()
    rows = [known.tokens.index(token) for token in vocabulary.tokens if token in known.tokens]
    places = [row for row, token in enumerate(vocabulary.tokens) if token in known.tokens]
    tables = ["decoder.vocabulary.weight", "decoder.vocabulary.bias"]
    for name in tables if tied else [*tables, "decoder.embedding.weight"]:
        assert torch.equal(new[name][places], old[name][rows]), name
    for name in old.keys() - {*tables, "decoder.embedding.weight"}:
        assert torch.equal(new[name], old[name]), name
    if tied:
        assert (
            new["decoder.vocabulary.weight"].data_ptr()
            == new["decoder.embedding.weight"].data_ptr()
        )


def test_new_words_begin_like_rare_ones_and_differ(tmp_path: Path) -> None:
    before, config, known = tiny.model()
    save_model(tmp_path / "start", before, config, known, card="#")
    words = [*known.words, *(f"new{number}" for number in range(400))]
    model, vocabulary = with_vocabulary(words, tie=False)
    load_pretrained(model, vocabulary, tmp_path / "start", seed=1)
    half = (4 + len(known)) // 2
    for name in ("decoder.embedding.weight", "decoder.vocabulary.weight"):
        rare, new = before.state_dict()[name][half:], model.state_dict()[name][len(known) :]
        torch.testing.assert_close(new.mean(0), rare.mean(0), atol=0.2 * rare.std().item(), rtol=0)
        assert new.std(0).mean().item() == pytest.approx(0.5 * rare.std(0).mean().item(), rel=0.1)
        assert len(new.unique(dim=0)) == 400
    bias = before.state_dict()["decoder.vocabulary.bias"]
    new_bias = model.state_dict()["decoder.vocabulary.bias"][len(known) :]
    torch.testing.assert_close(new_bias, bias[half:].mean().expand(400))
    again, _ = with_vocabulary(words, tie=False)
    load_pretrained(again, vocabulary, tmp_path / "start", seed=1)
    assert torch.equal(
        again.state_dict()["decoder.embedding.weight"],
        model.state_dict()["decoder.embedding.weight"],
    )


def test_modules_whose_weights_do_not_match_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, config, known = tiny.model(select="hard")
    save_model(tmp_path / "start", before, config, known, card="#")
    other = replace(config, attention=replace(config.attention, dim=12))
    load_pretrained(build_model(other, len(known)), known, tmp_path / "start")
    (said,) = capsys.readouterr().err.splitlines()
    modules = (f"decoder.attention.score.{name}" for name in ("query", "key", "energy"))
    assert f"lacks the weights of {', '.join(modules)}, which" in said
