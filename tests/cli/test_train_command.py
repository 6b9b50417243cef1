"""`train.py` as a user runs it: a process that is killed, interrupted, resumed and misused."""

from __future__ import annotations

import inspect
import re
import signal
import sys
from pathlib import Path

import pytest
import tiny
from PIL import Image
from programs import Commands, ProgramResult, Programs, Running

from captioner import Captioner
from captioner.checkpoint import GRAPHS, STATE, verify
from captioner.cli.train import train_settings
from captioner.config import from_yaml, to_yaml
from captioner.config.recipes import shipped_recipes
from captioner.config.settings import Config, SourceConfig
from captioner.config.validation import data_sources
from captioner.errors import ConfigError
from captioner.training.trainer import load_training_state

STEPS = 9  # an epoch: 17 batches by twos
Whole = tuple[Path, ProgramResult]
# Of the processes of torchrun the first alone adds graphs to the model, which takes most of the time
# of these short runs: a test that is not about the model is another one.
NO_GRAPHS = {"RANK": "1"}


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.draw_table(tmp_path_factory.mktemp("training") / "photos", train=33)


def recipe(table: Path, run: Path, **changed: object) -> Path:
    """A recipe's file: EMA, two batches a step, dropout and augmentation are all on."""
    config = tiny.recipe(table, run, **{"train__checkpoint_every": 3, **changed})
    path = run.with_name(f"{run.name}.yaml")
    path.write_text(to_yaml(config))
    return path


def reached(run: Path, step: int) -> bool:
    """Whether the log has so many whole lines."""
    log = run / "metrics.jsonl"
    return log.exists() and log.read_text().count("\n") >= step


@pytest.fixture(scope="session")
def whole(table: Path, programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run of two epochs that nobody interrupts, and how it ended."""
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, programs.run("train.py", "--config", recipe(table, run), "--train.samples", 1)


def test_a_run_ends_well_and_says_where_its_best_model_is(whole: Whole) -> None:
    run, outcome = whole
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout == f"{run / 'best'}\n"
    assert "Traceback" not in outcome.stderr
    lines = outcome.stderr.splitlines()
    data, *epochs, confidence, graphs = [line for line in lines if not line.startswith("warning: ")]
    assert "39 photos, splits train, val, test" in data
    assert [line[:16] for line in epochs] == ["epoch 1 (beam 2)", "epoch 2 (beam 2)"]
    assert confidence.startswith("captions of this model have no confidence: 3 validation photos")
    assert graphs.startswith(f"writing graphs to {run / 'best'}")


def test_the_run_folder_holds_the_promised_files(whole: Whole, table: Path) -> None:
    run, _ = whole
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    folders = {"best", "last", "previous", "tensorboard"}
    assert names == {"config.yaml", "metrics.jsonl", *folders}
    expected = tiny.recipe(table, run, train__checkpoint_every=3, train__samples=1)
    assert from_yaml(Config, (run / "config.yaml").read_text(encoding="utf-8")) == expected
    verify(run / "last", needs_state=True)
    assert not (run / "best" / STATE).exists()
    assert all((run / "best" / name).exists() for name in GRAPHS), "it captions without PyTorch"
    assert load_training_state(run / "last")["step"] == 2 * STEPS


def test_tensorboard_shows_the_same_figures_and_sample_pictures(whole: Whole) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, _ = whole
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("train/total")]
    logged = [(e["step"], e["total"]) for e in tiny.log_entries(run, "train")]
    assert [step for step, _ in shown] == [step for step, _ in logged]
    assert [v for _, v in shown] == pytest.approx([v for _, v in logged])
    assert [event.step for event in events.Images("samples/0")] == [STEPS, 2 * STEPS]


def started(programs: Programs, file: Path, step: int, *options: object) -> tuple[Running, Path]:
    """A run that has got to a step."""
    run = file.with_suffix("")
    running = programs.start("train.py", "--config", file, *options)
    running.wait_until(lambda: reached(run, step) or running.poll() is not None)
    return running, run


def assert_resumed_as(whole: Whole, programs: Programs, file: Path) -> None:
    """A run that was cut, gone on with, ends as one that was not, bit for bit."""
    resumed = programs.run("train.py", "--config", file, "--resume", **NO_GRAPHS)
    assert resumed.code == 0, resumed.stderr
    tiny.assert_same_run(file.with_suffix(""), whole[0])


@pytest.mark.parametrize(
    ("workers", "step"), [(2, 4), pytest.param(0, STEPS + 5, marks=pytest.mark.slow)]
)
def test_a_run_killed_in_mid_epoch_is_resumed_to_the_last_bit(
    whole: Whole, table: Path, tmp_path: Path, programs: Programs, workers: int, step: int
) -> None:
    file = recipe(table, tmp_path / "run", data__workers=workers)
    running, run = started(programs, file, step)
    running.signal(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    assert load_training_state(run / "last")["batch"], "it was not in mid-epoch"
    assert len(tiny.log_entries(run)) < 2 * STEPS
    assert_resumed_as(whole, programs, file)


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGINT, 2),
        pytest.param(signal.SIGTERM, 0, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 2, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_saves_says_so_and_is_resumed_to_the_last_bit(
    whole: Whole,
    table: Path,
    tmp_path: Path,
    programs: Programs,
    number: signal.Signals,
    workers: int,
) -> None:
    file = recipe(table, tmp_path / "run", data__workers=workers, train__checkpoint_every=0)
    running, run = started(programs, file, 5)
    running.signal(number)
    outcome = running.wait()
    assert outcome.code == 130
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr, outcome.stderr
    sentence = outcome.stderr.splitlines()[-1]
    assert "--resume" in sentence
    assert str(run) in sentence
    assert load_training_state(run / "last")["step"] >= 5
    assert_resumed_as(whole, programs, file)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"encoder__trainable_from": "layer4", "optim__name": "rmsprop",
         "optim__schedule": "plateau", "preprocess__resize": "letterbox"}, marks=pytest.mark.slow),
        {"data__cache": "cache", "data__cache_views": 2, "optim__name": "adamw",
         "data__workers": 1, "data__batch_by": "length"},
    ],
    ids=["fine-tuned", "frozen and cached"],
)  # fmt: skip
def test_every_kind_of_training_runs_and_captions(
    drawn_photos: Path, tmp_path: Path, programs: Programs, changed: dict[str, object]
) -> None:
    run = tmp_path / "run"
    file = recipe(drawn_photos, run, **changed)
    outcome = programs.run("train.py", "--config", file, cwd=tmp_path, **NO_GRAPHS)
    assert outcome.code == 0, outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert Captioner.from_pretrained(run, device="cpu").caption(drawn_photos / "00.jpg").words
    if "data__cache" in changed:
        assert len(list((tmp_path / "cache").glob("*/features.npy"))) == 2, "training, validation"


def test_a_setting_on_the_command_line_goes_over_the_recipe(tmp_path: Path) -> None:
    file = recipe(tmp_path, tmp_path / "run")
    before, after = ["--train.epochs", "1"], ["--train.output", "other", "--optim.lr=1e-3"]
    config, _ = train_settings([*before, "--config", str(file), *after])
    assert (config.train.epochs, config.train.output, config.optim.lr) == (1, "other", 1e-3)


def test_without_arguments_the_recipes_are_listed(commands: Commands) -> None:
    outcome = commands.run("captioner", "train")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "error: name a recipe with --config" in outcome.stderr
    assert "--data.root data/flickr8k" in outcome.stderr
    lines = outcome.stderr.splitlines()
    assert lines[0] == "recipes:"
    assert {line.split()[0] for line in lines[1:] if line[:2] == "  "} == set(shipped_recipes())


def test_help_has_every_setting_with_its_meaning_range_and_default(programs: Programs) -> None:
    outcome = programs.run("train.py", "--help")
    assert outcome.code == 0
    assert outcome.stderr == ""
    assert "CONFIG" not in outcome.stdout  # --encoder FILE and its like are refused
    shown = "".join(outcome.stdout.split())  # lines break anywhere
    for section, settings in vars(Config()).items():
        meanings = inspect.getdoc(type(settings)).split("Args:")[1]  # type: ignore[union-attr]
        for key in vars(settings):
            (meaning,) = re.findall(rf"^ +{key}: (.*)$", meanings, re.MULTILINE)
            assert "".join(f"--{section}.{key}".split()) in shown
            assert "".join(meaning.split()) in shown, f"{section}.{key}"
    for fact in (
        "Dropoutonthewordembeddings.",
        "default:0.0005",
        "{additive,concat,dot,scaled_dot,general,cosine,location}",
        "--resume",
        "--config",
    ):
        assert fact in shown, fact


def test_roots_name_their_source(tmp_path: Path) -> None:
    text = "data: {sources: [{name: a, root: r}, {name: b, format: table}]}"
    (tmp_path / "two.yaml").write_text(text)
    recipe = ["--config", str(tmp_path / "two.yaml")]

    def roots(*options: str) -> list[str]:
        config, _ = train_settings([*options[:1], *recipe, *options[1:]])
        return [source.root for source in data_sources(config.data)]

    assert roots("--data.root=b=/x=y") == ["r", "/x=y"]
    assert roots("--data.root=b=x", "--data.root", "a=y") == ["y", "x"]
    assert roots("--data.root=b=x,a=y") == ["y", "x"]
    with pytest.raises(ConfigError, match=r"^data\.root: .*a, b"):
        roots("--data.root=x")
    config, _ = train_settings(["--data.root=x", "--data.root", "y"])
    assert config.data.root == "y"
    config, _ = train_settings(['--data.sources=[{"root": "a", "weight": 2}]'])
    assert config.data.sources == (SourceConfig(root="a", weight=2.0),)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process need Linux")
@pytest.mark.slow
def test_a_disk_that_is_full_ends_the_run_in_one_sentence_and_loses_nothing(
    whole: Whole, table: Path, tmp_path: Path, programs: Programs
) -> None:
    import resource

    file = recipe(table, tmp_path / "run", train__checkpoint_every=1)
    running, run = started(programs, file, 3)
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    sentence = running.wait()
    assert sentence.code == 2, sentence
    assert "Traceback" not in sentence.stderr
    last = sentence.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert str(run) in last
    assert "File too large" in last
    verify(run / "last", needs_state=True)
    assert not list(run.glob(".*.writing")), "it would keep what is left of the disk"
    assert_resumed_as(whole, programs, file)


def test_a_run_is_drawn_with_its_curves(whole: Whole, commands: Commands, tmp_path: Path) -> None:
    log = (whole[0] / "metrics.jsonl").read_text(encoding="utf-8")
    (tmp_path / "metrics.jsonl").write_text(log + '{"kind": "tr')  # it is being written
    outcome = commands.run("captioner", "plot", tmp_path, "--output", tmp_path, "--save", "all")
    names = ["curves.png", "curves.pdf", "curves.svg"]
    assert outcome.stdout.split() == [str(tmp_path / name) for name in names]
    with Image.open(tmp_path / "curves.png") as curves:
        assert curves.width > 1500
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")
