"""The training loop: exact after any interruption, and each of its promises for itself."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from cuts import Interrupted, interrupt

from captioner.config.settings import Config
from captioner.errors import CaptionerError
from captioner.training import cross_entropy, train
from captioner.training.run_log import RunLog
from captioner.training.setup import prepare
from captioner.training.trainer import MAX_SKIPPED_STEPS, Trainer, load_training_state


def train_until(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    call: int,
    error: type[BaseException],
    config: Config,
) -> None:
    """Train until this function raises this error in its n-th call."""
    with monkeypatch.context() as patched:
        interrupt(patched, name, call, error)
        with pytest.raises(error):
            train(config)


def test_an_interrupt_leaves_no_worker_that_a_script_would_wait_for(
    drawn_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.recipe(drawn_photos, tmp_path / "run", data__workers=1)
    interrupt(monkeypatch, "caption_losses", 1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) as caught:  # whose traceback keeps the loop's variables
        train(config)
    assert caught.tb is not None
    assert not multiprocessing.active_children()


@pytest.fixture(scope="session")
def whole(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody interrupted: two epochs of five batches, three steps each."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train(tiny.recipe(table, run))
    return run


def test_every_step_and_validation_is_logged(whole: Path) -> None:
    steps, validations = (tiny.log_entries(whole, kind) for kind in ("train", "validation"))
    assert [(e["step"], e["epoch"]) for e in steps] == [(step, step > 3) for step in range(1, 7)]
    needed = {"epoch", "total", "cross_entropy", "doubly_stochastic", "learning_rate",
              "gradient_norm", "attention_entropy", "attention_change", "beta"}  # fmt: skip
    assert all(needed <= entry.keys() for entry in steps)
    assert [entry["step"] for entry in validations] == [3, 6]
    assert all({"CIDEr", "Bleu_4", "ROUGE_L", "distinct_captions"} <= v.keys() for v in validations)
    assert load_training_state(whole / "last")["batch"] == 0
    assert load_training_state(whole / "last")["epoch"] == 2


def test_the_last_step_of_an_epoch_is_logged_however_short_it_is(
    table: Path, tmp_path: Path
) -> None:
    train(tiny.recipe(table, tmp_path / "run", train__log_every=2))
    # Three steps an epoch.
    assert [entry["step"] for entry in tiny.log_entries(tmp_path / "run", "train")] == [2, 3, 4, 6]


@pytest.mark.parametrize(
    ("name", "call", "error"),
    [
        ("caption_losses", 5, Interrupted),  # after a checkpoint in mid-epoch
        ("caption_losses", 9, KeyboardInterrupt),  # in the middle of an accumulated step
        ("validate", 1, KeyboardInterrupt),
        ("save_model", 4, Interrupted),
    ],
)
def test_a_run_that_was_cut_anywhere_ends_bit_for_bit_as_one_that_was_not(
    whole: Path,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    call: int,
    error: type[BaseException],
) -> None:
    run = tmp_path / "run"
    train_until(monkeypatch, name, call, error, tiny.recipe(table, run))
    torch.manual_seed(99)
    train(tiny.recipe(table, run), resume=(run / "last").exists())
    tiny.assert_same_run(run, whole)


def test_a_validation_s_record_survives_a_kill_before_it_is_written(
    whole: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    write = RunLog.write

    def killed(log: RunLog, kind: str, step: int, figures: Any) -> None:
        if kind == "validation" and figures["epoch"] == 0:
            raise Interrupted
        write(log, kind, step, figures)

    with monkeypatch.context() as patched:
        patched.setattr(RunLog, "write", killed)
        with pytest.raises(Interrupted):
            train(tiny.recipe(table, run))
    assert not tiny.log_entries(run, "validation")
    for _ in range(2):  # resumed again when it has ended, it writes nothing twice
        train(tiny.recipe(table, run), resume=True)
        tiny.assert_same_run(run, whole)
    validated = tiny.log_entries(run, "validation")
    assert [(e["epoch"], e["step"]) for e in validated] == [(0, 3), (1, 6)]


def test_a_finished_run_resumed_ends_at_once(
    whole: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    trained = (run / "config.yaml").read_text()
    assert train(tiny.recipe(table, run, optim__lr=0.5), resume=True) == run / "best"
    assert "this run has ended after epoch 2" in capsys.readouterr().err
    assert (run / "config.yaml").read_text() == trained, "not with settings that trained nothing"
    tiny.assert_same_run(run, whole)


@pytest.mark.parametrize(
    "changed",
    [
        {"optim__accumulate": 1, "data__batch_by": "length", "optim__name": "adam",
         "train__checkpoint_every": 4},
        {"encoder__trainable_from": "layer4", "encoder__batch_norm": "train",
         "optim__ema_decay": 0.0, "optim__name": "rmsprop", "decoder__tie_embeddings": True,
         "attention__select": "hard", "hard__baseline": "moving_average"},
    ],
    ids=["adam", "rmsprop, hard, fine-tuned"],
)  # fmt: skip
def test_other_recipes_resume_exactly_too(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, object]
) -> None:
    runs = [tmp_path / "whole", tmp_path / "cut"]
    train(tiny.recipe(table, runs[0], **changed))
    train_until(
        monkeypatch, "learning_rate_factor", 6, Interrupted, tiny.recipe(table, runs[1], **changed)
    )
    train(tiny.recipe(table, runs[1], **changed), resume=True)
    tiny.assert_same_run(runs[1], runs[0])


def test_a_changed_learning_rate_takes_effect_and_is_reported(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    constant = {"optim__schedule": "constant", "optim__warmup_steps": 0}
    recipe = tiny.recipe(table, run, optim__lr=1e-3, **constant)
    train_until(monkeypatch, "learning_rate_factor", 6, Interrupted, recipe)
    capsys.readouterr()
    train(tiny.recipe(table, run, optim__lr=1e-4, **constant), resume=True)
    assert f"optim.lr: changed since {run} began" in capsys.readouterr().err
    rates = {entry["step"]: entry["learning_rate"] for entry in tiny.log_entries(run, "train")}
    assert rates[1] == pytest.approx(1e-3)
    assert rates[6] == pytest.approx(1e-4)


@pytest.mark.parametrize("key", ["decoder__hidden_dim", "train__seed"])
def test_a_change_that_does_not_fit_is_refused_by_name_and_harms_nothing(
    whole: Path, table: Path, key: str
) -> None:
    files = [whole / "last" / "model.safetensors", whole / "config.yaml"]
    before = [file.read_bytes() for file in files]
    with pytest.raises(CaptionerError, match=f"^{key.replace('__', '.')}: not the same as when"):
        train(tiny.recipe(table, whole, **{key: 3}), resume=True)
    assert [file.read_bytes() for file in files] == before


def test_there_is_nothing_to_resume_before_the_first_checkpoint(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CaptionerError, match="there is no run to resume"):
        train(tiny.recipe(table, tmp_path / "run"), resume=True)
    train_until(monkeypatch, "caption_losses", 1, Interrupted, tiny.recipe(table, tmp_path / "run"))
    with pytest.raises(CaptionerError, match="there is no run to resume"):
        train(tiny.recipe(table, tmp_path / "run"), resume=True)


def trainer(table: Path, run: Path, **changed: object) -> Trainer:
    """Return the trainer of a run of one epoch."""
    config = tiny.recipe(table, run, **{"train__epochs": 1, **changed})
    return Trainer(prepare(config, torch.device("cpu")), run, torch.device("cpu"))


STILL = {**tiny.NO_DROPOUT, "optim__ema_decay": 0.0, "optim__clip_norm": 0.0}


def gradients(made: Trainer, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """Return the gradient of each step of an epoch, at weights that stay what they are."""
    seen: list[dict[str, torch.Tensor]] = []

    def step() -> None:
        named = made.model.named_parameters()
        seen.append({name: p.grad.clone() for name, p in named if p.grad is not None})

    monkeypatch.setattr(made.optimizer, "step", step)
    made.fit()
    return seen


def test_an_accumulated_gradient_is_that_of_one_large_batch(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, accumulated = (
        gradients(
            trainer(table, tmp_path / f"{size}", **STILL, data__batch_size=size,
                    optim__accumulate=8 // size, loss__doubly_stochastic=0.5),
            monkeypatch,
        )
        for size in (8, 2)
    )  # fmt: skip
    assert len(large) == len(accumulated) > 1
    for expected, found in zip(large, accumulated, strict=True):
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-7)


def not_finite(monkeypatch: pytest.MonkeyPatch, *calls: int) -> None:
    """Make the loss infinite in these calls, counted from 1."""
    original = cross_entropy.caption_losses
    count = 0

    def losses(*arguments: Any, **options: Any) -> dict[str, torch.Tensor]:
        nonlocal count
        count += 1
        found = original(*arguments, **options)
        factor = float("inf") if count in calls else 1.0
        return {**found, "total": found["total"] * factor}

    monkeypatch.setattr(cross_entropy, "caption_losses", losses)


def test_many_steps_in_a_row_that_are_not_finite_stop_the_run(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    made = trainer(table, run, optim__accumulate=1, train__epochs=5)  # of five steps each
    not_finite(monkeypatch, 2, *range(4, 4 + MAX_SKIPPED_STEPS), 30)
    with pytest.raises(CaptionerError, match=rf"not finite in {MAX_SKIPPED_STEPS} steps in a row"):
        made.fit()
    # The last of calls 4 to 13 ended it; a resumed run does not count anew from the checkpoint.
    assert load_training_state(run / "last")["step"] == 12
    assert load_training_state(run / "last")["skipped_steps"] == 9
    assert all(torch.isfinite(p).all() for p in made.task.parameters())


def test_the_best_model_is_of_the_epoch_with_the_best_metric(whole: Path) -> None:
    figures = {
        entry["epoch"] + 1: entry["CIDEr"] for entry in tiny.log_entries(whole, "validation")
    }
    best = max(figures, key=lambda epoch: (figures[epoch], epoch))
    card = (whole / "best" / "README.md").read_text()
    assert f"epoch {best}," in card
    assert str(whole.parent) not in card, "others need not know where it was made"
    assert f"| CIDEr | {figures[best]:.4f} |" in card
    assert not (whole / "best" / "training_state.pt").exists()


def test_an_unreadable_training_photo_is_named_once_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_table = tiny.draw_table(tmp_path / "photos", train=9)
    (broken_table / "04.jpg").write_bytes(b"damaged")
    train(tiny.recipe(broken_table, tmp_path / "run"))
    assert capsys.readouterr().err.count(str(broken_table / "04.jpg")) == 1
    assert len(tiny.log_entries(tmp_path / "run", "train")) == 6
