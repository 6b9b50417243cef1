"""Run folders and settings to begin or resume with, and errors outside of the steps."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from captioner.captioner import Captioner
from captioner.checkpoint import load_config, verify
from captioner.config import DecodingConfig
from captioner.errors import CaptionerError, CheckpointError, ConfigError
from captioner.evaluation import calibration
from captioner.generation.confidence import Calibrator
from captioner.models import products
from captioner.training import run as run_module
from captioner.training import train
from captioner.training import trainer as loop
from captioner.training.setup import prepare
from captioner.training.trainer import Trainer, load_training_state
from captioner.training.validation import Validation, validate

CPU = torch.device("cpu")
ASLEEP = {"optim__lr": 1e-12, "optim__encoder_lr": 1e-12}  # no epoch is better than the first


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.draw_table(tmp_path_factory.mktemp("table") / "photos", train=6)


@pytest.fixture(scope="module")
def whole(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    train(tiny.recipe(table, run, train__epochs=1))
    return run


@pytest.fixture
def begun(whole: Path, tmp_path: Path) -> Path:
    """A run of one epoch, to go on with."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.mark.parametrize("folder", ["best", "."])
def test_a_model_is_not_overwritten_by_a_run(
    folder: str, whole: Path, table: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(whole / "best", model / folder)
    with pytest.raises(ConfigError, match=r"train\.output: .* holds a run or a model"):
        train(tiny.recipe(table, model))
    verify(model / folder)


def test_a_run_goes_on_with_its_data_wherever_they_lie(
    begun: Path, table: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(table, tmp_path / "moved"))
    train(tiny.recipe(moved, begun, train__epochs=2), resume=True)
    assert load_training_state(begun / "last")["epoch"] == 2


def test_a_run_does_not_go_on_with_other_data(begun: Path, table: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(table, tmp_path / "other"))
    captions = other / "captions.csv"
    captions.write_text(captions.read_text().replace("field", "red field", 1))
    with pytest.raises(CheckpointError, match="began with other .*training captions") as caught:
        train(tiny.recipe(other, begun, train__epochs=2), resume=True)
    assert str(begun / "last") in str(caught.value)


LONG = {"train__epochs": 2, "train__checkpoint_every": 2, "optim__accumulate": 1}


@pytest.fixture(scope="module")
def long(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs, whose last two checkpoints are some steps apart."""
    run = tmp_path_factory.mktemp("long") / "run"
    train(tiny.recipe(table, run, **LONG))
    return run


def cut_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"cut")


@pytest.mark.parametrize("damage", [cut_weights, shutil.rmtree])
def test_a_run_whose_last_checkpoint_is_damaged_goes_on_from_the_one_before(
    damage: Callable[[Path], None],
    long: Path,
    table: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ended = Path(shutil.copytree(long, tmp_path / "run"))
    before, after = (load_training_state(ended / name) for name in ("previous", "last"))
    assert before["step"] < after["step"]
    damage(ended / "last")
    train(tiny.recipe(table, ended, **LONG), resume=True)
    error = capfd.readouterr().err
    (warning,) = [line for line in error.splitlines() if "going on from" in line]
    assert warning.startswith(str(ended / "last"))
    assert str(ended / "previous") in warning
    tiny.assert_same_run(ended, long)
    for name in ("previous", "last", "best"):
        verify(ended / name, needs_state=name != "best")


def test_the_rate_falls_after_so_many_bad_epochs_also_after_a_better_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tiny.draw_table(tmp_path / "photos", train=2)
    metrics = [1, 1, 0, 2, 1, 1, 1]  # an equal one is no better
    figures = iter(metrics)
    validate = loop.validate

    def scored(*arguments: Any, **settings: Any) -> Validation:
        """Return the validation with the next figure as its metric."""
        found = validate(*arguments, **settings)
        return replace(found, figures={**found.figures, "CIDEr": float(next(figures))})

    monkeypatch.setattr(loop, "validate", scored)
    plateau = {"optim__schedule": "plateau", "optim__plateau_epochs": 2, "train__patience": 0}
    config = tiny.recipe(
        table,
        tmp_path,
        **plateau,
        optim__warmup_steps=0,
        optim__lr=1.0e-3,
        train__epochs=len(metrics) + 1,
        train__checkpoint_every=0,
    )
    trainer = Trainer(prepare(config, CPU), tmp_path, CPU)
    with pytest.raises(StopIteration):  # there is no figure for the last epoch
        trainer.fit()
    steps = tiny.log_entries(tmp_path, "train")  # one an epoch, which knows the metrics before it
    drops = [round(math.log10(1.0e-3 / entry["learning_rate"])) for entry in steps]
    assert drops == [0, 0, 0, 1, 1, 1, 2, 2]


def test_the_early_end_of_a_run_is_reported(
    table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(tiny.recipe(table, tmp_path / "run", **ASLEEP, train__epochs=9, train__patience=2))
    error = capfd.readouterr().err
    assert "stopped: CIDEr has not risen for 2 epochs (train.patience)" in error
    assert "the best model is of epoch 3" in error, "of equal ones the last"


@pytest.mark.parametrize("where", ["validate", "sample_sheets"])
def test_an_error_after_the_steps_of_an_epoch_costs_none_of_them(
    where: str, whole: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object, **settings: object) -> None:
        raise CaptionerError("the disk is full")

    monkeypatch.setattr(loop, where, fails)
    run = tmp_path / "run"
    config = tiny.recipe(table, run, train__epochs=1, train__checkpoint_every=0)
    with pytest.raises(CaptionerError, match="the disk is full"):
        train(config)
    kept = load_training_state(run / "last")
    assert kept["step"] > 0
    assert (kept["epoch"], kept["batch"]) == ((0, 3) if where == "validate" else (1, 0))
    monkeypatch.undo()
    train(config, resume=True)
    models = [folder / "last" / "model.safetensors" for folder in (run, whole)]
    assert models[0].read_bytes() == models[1].read_bytes()


@pytest.mark.parametrize("faster", [False, True])
def test_a_run_on_a_cpu_multiplies_and_folds_as_is_fastest(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: bool
) -> None:
    taken: list[bool] = []
    monkeypatch.setattr(run_module, "onednn_is_faster", lambda: faster)
    monkeypatch.setattr(
        loop, "fold_frozen_stages", lambda _: taken.append(products._by_onednn.get())
    )
    train(tiny.recipe(table, tmp_path / "run", train__epochs=1))
    assert taken == [faster]


def test_a_run_ends_with_the_calibrator_of_its_best_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tiny.draw_table(tmp_path / "photos", train=2, val=24, test=0)
    scores = [np.zeros(24), np.arange(24) % 3 / 2]
    monkeypatch.setattr(calibration, "area_under_curve", lambda *_: 0.6)
    of_training = np.arange(2) % 2.0
    monkeypatch.setattr(
        calibration,
        "caption_scores",
        lambda texts, *_: scores.pop(0) if len(texts) == 24 else of_training,
    )

    def calibrator_of(run: str, least: int) -> Calibrator | None:
        best = train(
            tiny.recipe(
                root,
                tmp_path / run,
                train__epochs=1,
                train__calibrate_from=least,
                decoding__length_penalty=0.0,
            )
        )
        return Captioner.from_pretrained(best, device="cpu").calibrator

    assert calibrator_of("few", 25) is None
    assert calibrator_of("never", 0) is None
    assert len(scores) == 2
    assert calibrator_of("all wrong", 24) is None, "which loses nothing else"
    assert "all wrong/best: without a calibrator (0 of 24 captions" in capsys.readouterr().err
    assert calibrator_of("fitted", 24).fitted_on == "table (24 photos)"


def test_the_best_length_penalty_of_validation_is_written_into_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tiny.draw_table(tmp_path / "photos", train=2, val=3, test=0)
    monkeypatch.setattr(run_module, "calibrate", lambda *_: None)
    score_of = {0.0: 0.1, 0.4: 0.3, 0.8: 0.2, 1.2: 0.0}
    tried: list[float] = []

    def validated(*arguments: Any, decoding: DecodingConfig, **named: Any) -> Validation:
        found = validate(*arguments, decoding=decoding, **named)
        tried.append(decoding.length_penalty)
        return replace(found, figures={"CIDEr": score_of[decoding.length_penalty]})

    monkeypatch.setattr(run_module, "validate", validated)

    def penalty_after(run: str, **changed: Any) -> float | None:
        config = tiny.recipe(root, tmp_path / run, train__epochs=1, **changed)
        return load_config(train(config)).decoding.length_penalty

    assert penalty_after("chosen", train__calibrate_from=3) == 0.4
    assert "decoding.length_penalty 0.4 has the best CIDEr" in capsys.readouterr().err
    assert tried == [*score_of]
    assert penalty_after("few", train__calibrate_from=4) is None
    assert penalty_after("given", train__calibrate_from=3, decoding__length_penalty=1.0) == 1.0
    assert len(tried) == len(score_of)


def test_the_log_times_the_steps_since_its_last_entry(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    config = tiny.recipe(table, tmp_path, train__epochs=1, train__log_every=1)
    trainer = Trainer(prepare(config, CPU), tmp_path, CPU)
    take_step = trainer.take_step

    def slow_at_first(*arguments: Any, **settings: Any) -> Any:
        nonlocal now
        now += 5.0 if trainer.step == 0 else 2.0
        return take_step(*arguments, **settings)

    trainer.take_step = slow_at_first
    trainer.fit()
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    first, second, *_ = [line["step_s"] for line in lines if line["kind"] == "train"]
    assert (first, second) == (5.0, 2.0)
