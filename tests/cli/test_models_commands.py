"""`captioner average` and `export`: models of models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from programs import Commands

from captioner.captioner import Captioner
from captioner.checkpoint import load_model
from captioner.checkpoint_writer import save_model


@pytest.fixture
def several(tiny_model: Path, tmp_path: Path) -> list[Path]:
    """Three models of one kind; two were trained otherwise, and one at another size."""
    folders = []
    for number in range(3):
        model, config, vocabulary = load_model(tiny_model)
        torch.manual_seed(number)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        if number:
            config = replace(config, decoder=replace(config.decoder, dropout=0.1))
        if number == 2:
            larger = replace(config.preprocess, height_px=96, width_px=64)
            harder = replace(config.attention, select="hard", at_test="sample", values="local")
            config = replace(config, preprocess=larger, attention=harder)
        folders.append(tmp_path / str(number))
        save_model(folders[-1], model, config, vocabulary, card="")
    return folders


def test_every_weight_is_the_mean(commands: Commands, several: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "mean"
    done = commands.run("captioner", "average", *several, output)
    assert (done.code, done.stdout) == (0, f"{output}\n"), done.stderr
    found, config, vocabulary = load_model(output)
    first, its_config, its_vocabulary = load_model(several[0])
    assert config == its_config
    assert vocabulary.tokens == its_vocabulary.tokens
    states = [load_model(folder)[0].state_dict() for folder in several]
    for name, value in found.state_dict().items():
        mean = sum(state[name].double() for state in states) / 3
        torch.testing.assert_close(value.double(), mean, rtol=1e-6, atol=1e-7)
        if value.is_floating_point() and "running" not in name:
            assert not torch.equal(value, first.state_dict()[name]), name
    assert all(str(folder) in (output / "README.md").read_text() for folder in several)


def test_models_that_began_apart_are_refused(
    commands: Commands, tiny_model: Path, tmp_path: Path
) -> None:
    model, config, vocabulary = load_model(tiny_model)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.copy_(torch.randn_like(parameter))
    save_model(tmp_path / "other", model, config, vocabulary, card="")
    folders = (tiny_model, tmp_path / "other", tmp_path / "mean")
    refusal = commands.run("captioner", "average", *folders).sentence()
    assert f"{tmp_path / 'other'}: did not begin with the same model" in refusal
    assert not (tmp_path / "mean").exists()


def test_an_exported_model_is_half_as_large_and_keeps_the_given_search_settings(
    commands: Commands,
    tiny_model: Path,
    drawn_photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Graphs take seconds, and other tests have them.
    monkeypatch.setattr("captioner.export.export_graphs", lambda *_, **__: None)
    options = ["--no-repeat-ngram", 2, "--length-penalty", 0.5]
    done = commands.run("captioner", "export", tiny_model, tmp_path / "small", *options)
    assert done.code == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'small'}\n"
    before, after = (
        (folder / "model.safetensors").stat().st_size for folder in (tiny_model, tmp_path / "small")
    )
    assert after < 0.6 * before
    small = Captioner.from_pretrained(tmp_path / "small", device="cpu")
    assert small.config.decoding.no_repeat_ngram == 2
    assert small.config.decoding.length_penalty == 0.5
    assert small.caption(drawn_photos / "00.jpg").words
