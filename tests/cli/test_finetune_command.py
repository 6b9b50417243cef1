"""`captioner finetune`: the settings that it trains with, and a run from end to end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tiny

from captioner.checkpoint import MODELS, load_config, load_model
from captioner.cli.train import finetune, finetune_settings
from captioner.config import from_yaml, to_yaml
from captioner.config.settings import Config
from captioner.config.validation import validate
from captioner.errors import ConfigError
from captioner.training import train


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Photos and captions without a column split."""
    path = tiny.draw_table(tmp_path / "photos") / "captions.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    return path


def test_architecture_is_the_models_and_options_win(tiny_model: Path, tmp_path: Path) -> None:
    arguments = ["my.csv", "--from", str(tiny_model), "--output", str(tmp_path / "run")]
    config, resume = finetune_settings([*arguments, "--optim.lr", "3e-4", "--decoder.dropout=0.25"])
    model = load_config(tiny_model)
    assert config.preprocess == model.preprocess
    assert config.attention == model.attention
    assert config.decoder.hidden_dim == model.decoder.hidden_dim == 16
    assert config.decoder.dropout == 0.25
    assert config.encoder.trainable_from is None
    assert (config.optim.lr, config.optim.schedule) == (3e-4, "cosine")
    assert (config.train.start_from, config.data.root) == (str(tiny_model), "my.csv")
    assert config.data.cache == str(tmp_path / "run" / "cache")
    assert not resume
    tuned, _ = finetune_settings([*arguments, "--encoder.trainable_from", "layer4"])
    validate(tuned)
    elsewhere, _ = finetune_settings([*arguments, "--data.cache", "elsewhere"])
    assert elsewhere.data.cache == "elsewhere"


def test_a_recipe_may_hold_what_an_option_gives(tiny_model: Path, tmp_path: Path) -> None:
    """As the config.yaml of a run, with which a resumed run is begun."""
    arguments = ["my.csv", "--from", str(tiny_model), "--output", "run"]
    config, _ = finetune_settings(arguments)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    again, _ = finetune_settings([*arguments, "--config", str(tmp_path / "config.yaml")])
    assert (again.data.root, again.train.output) == ("my.csv", "run")


def test_a_run_keeps_the_models_words_and_adds_new_ones(
    table: Path, tiny_model: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")  # of several processes, the first alone adds graphs
    table.write_text(table.read_text().replace("field", "meadow"))
    run = tmp_path / "run"
    arguments = [str(table), "--from", str(tiny_model), "--output", str(run)]
    arguments += ["--train.epochs", "1", "--train.samples", "0", "--train.device", "cpu"]
    assert finetune(arguments) == 0
    captured = capsys.readouterr()
    assert (run / "best").is_dir()
    assert "held out for validation" in captured.err
    start = re.search(r"before: CIDEr (\d\.\d{3}) on \d+ photos", captured.err)
    assert start
    assert re.search(rf"CIDEr {start[1]} before, \d\.\d{{3}} after epoch 1", captured.err)
    before, after = load_model(tiny_model)[2], load_model(run / "best")[2]
    assert after.words[: len(before.words)] == before.words
    assert "meadow" in after
    assert finetune([*arguments, "--resume", "--train.epochs", "2"]) == 0
    assert f"CIDEr {start[1]} before, " in capsys.readouterr().err
    assert from_yaml(Config, (run / "config.yaml").read_text()).train.epochs == 2


def test_a_start_of_another_architecture_is_refused_with_what_it_lacks(
    tiny_model: Path, tmp_path: Path, capsys
) -> None:
    root = tiny.draw_table(tmp_path / "photos")
    other: dict[str, Any] = {"train__start_from": str(tiny_model), "decoder__hidden_dim": 24}
    with pytest.raises(ConfigError, match="another architecture") as caught:
        train(tiny.recipe(root, tmp_path / "run", **other))
    assert "captioner finetune" in str(caught.value)
    other |= {"train__start_with": "encoder", "train__epochs": 1}
    best = train(tiny.recipe(root, tmp_path / "encoder", **other))
    assert "café" not in load_model(best)[2], "the words are those of the captions alone"
    assert "lacks the weights" not in capsys.readouterr().err


def test_help_shows_the_size_of_the_model_to_start_from(capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        finetune(["--help"])
    assert stopped.value.code == 0
    height = load_config(MODELS / "soft").preprocess.height_px
    text = capsys.readouterr().out
    assert re.search(rf"Height of the network's input\.[^)]*default: {height}\)", text)
