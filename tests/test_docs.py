"""Every command in README and docs is one that captioner understands; what can run offline runs."""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from programs import REPOSITORY, ProgramResult, Programs

from captioner.cli.commands import COMMANDS
from captioner.config import read_recipe

DOCS = REPOSITORY / "docs"
PAGES = ["README.md", *(f"docs/{path.relative_to(DOCS).as_posix()}" for path in DOCS.rglob("*.md"))]
PAGES.sort()
SCRIPTS = {"caption.py": "caption", "train.py": "train"}


def commands_in(page: str) -> Iterator[list[str]]:
    """Each captioner command in the page's code blocks, as the command's name and its arguments."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in (content for language, content in blocks if language in ("", "sh", "bash")):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ").partition(" #")[0]
            if "captioner" not in line and not line.startswith("python"):
                continue
            words = shlex.split(re.split(r"\s[|<>]\s", line)[0])
            if words[:1] == ["captioner"]:
                yield words[1:]
            elif words[:3] == ["python", "-m", "captioner"]:
                yield words[3:]
            elif len(words) > 1 and words[0] == "python" and words[1] in SCRIPTS:
                yield [SCRIPTS[words[1]], *words[2:]]


DOCUMENTED = [(page, words) for page in PAGES for words in commands_in(page)]


class Parsed(Exception):
    """The arguments were accepted; the command itself is not run."""


@pytest.mark.parametrize(("page", "words"), DOCUMENTED, ids=lambda value: str(value)[:80])
def test_a_documented_command_is_understood(
    page: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert words, f"{page} shows captioner without a command"
    assert words[0] in COMMANDS or words[0].startswith("-"), f"{page}: no command {words[0]}"
    if words[0] not in COMMANDS:
        return
    module = importlib.import_module(f"captioner.cli.{words[0].replace('-', '_')}")

    def stop(command: object) -> int:
        raise Parsed

    monkeypatch.setattr(module, "run_command", stop)
    monkeypatch.chdir(REPOSITORY)
    with pytest.raises((Parsed, SystemExit)) as outcome:
        module.main(words[1:])
    if outcome.type is SystemExit:  # --help
        assert outcome.value.code == 0, f"{page}: {capsys.readouterr().err}"


def test_pages_with_commands_are_found() -> None:
    """The pattern of `commands_in` finds the blocks, or this file would test nothing."""
    assert {"README.md", "docs/command-line.md", "docs/training.md", "docs/evaluation.md"} <= {
        page for page, _ in DOCUMENTED
    }
    assert len(DOCUMENTED) > 30


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the documented commands name: photos, a page, a table."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("photo.jpg", "holiday/one.jpg", "holiday/two.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        tiny.photo(len(name))[0].save(folder / name)
    (folder / "index.html").write_text('<img src="photo.jpg">')
    return folder


RUN = {"caption", "score", "doctor", "completion"}
UNFIT = {"--min-confidence", "--compare", "--paths", "-"}  # need another model, or standard input


def runnable() -> Iterator[list[str]]:
    """The commands of README and the command line's page that need neither data nor network."""
    seen = set()
    for _, words in DOCUMENTED:
        text = " ".join(words)
        if words[0] in RUN and text not in seen:
            seen.add(text)
            if not UNFIT & set(words) and "--measure" not in words:
                yield words


@pytest.mark.parametrize("words", list(runnable()), ids=" ".join)
def test_a_documented_command_runs(
    programs: Programs, tiny_model: Path, checkout: Path, words: list[str]
) -> None:
    """On a tiny model, because the bundled one takes its seconds: its name is all that differs."""
    arguments = list(words)
    if "--model" in arguments:
        place = arguments.index("--model")
        del arguments[place : place + 2]
    if words[0] in ("caption", "score"):
        arguments += ["--checkpoint", str(tiny_model), "--device", "cpu"]
    outcome: ProgramResult = programs.run("captioner", *arguments, cwd=checkout)
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout or "--resume" in words


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, "CHANGELOG.md", "CONTRIBUTING.md"]:
        file = REPOSITORY / page
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read_text(encoding="utf-8")):
            assert (file.parent / target).exists(), f"{page} links to {target}"


def test_recipes_named_on_a_page_are_there() -> None:
    for page, words in DOCUMENTED:
        for option, value in itertools.pairwise(words):
            if option == "--config" and "/" in value:
                assert (REPOSITORY / value).is_file(), f"{page} names {value}"


def test_the_readme_fits_a_short_reading() -> None:
    words = (REPOSITORY / "README.md").read_text(encoding="utf-8").split()
    assert len(words) < 1300
    assert "make caption" in " ".join(words)


# --- commands that train or evaluate: in order, on a tiny table and with a tiny network ------------

TINY = """--data.format table --data.file null --data.coco_splits null --data.train_split train
    --data.val_split val --data.batch_size 4 --data.workers 0 --data.cache null
    --data.min_count 1 --preprocess.height_px 64 --preprocess.width_px 64
    --encoder.backbone timm/test_resnet --encoder.weights none --encoder.trainable_from null
    --encoder.project_dim 16 --encoder.drop_path 0 --attention.dim 16 --decoder.hidden_dim 16
    --decoder.embed_dim 16 --decoder.feedforward_dim 16 --train.epochs 1 --train.samples 1
    --train.val_beam_size 1 --train.device cpu --decoding.max_words 6""".split()
SMALLER = {"flickr8k": "table", "coco": "table", "val2017": "val", "train2017": "train"}
BELONGS_TO_COCO = ("--objects",)  # instances of objects, which the tiny table has not
LONG = {"train", "plot", "evaluate", "compare", "average", "export"}


def long_commands(page: str) -> list[list[str]]:
    return [words for name, words in DOCUMENTED if name == page and words[0] in LONG]


def in_tiny(words: list[str], model: Path) -> list[str]:
    """The command with the tiny data and network in place of what it names."""
    arguments = [SMALLER.get(word, word) for word in words]
    for option in BELONGS_TO_COCO:
        if option in arguments:
            place = arguments.index(option)
            del arguments[place : place + 2]
    if words[0] == "train":
        arguments += TINY
    if words[0] == "evaluate" and "--checkpoint" not in words:
        arguments += ["--checkpoint", str(model)]
    return arguments


def output_of(words: list[str]) -> str:
    """The run folder of a training command."""
    options = list(itertools.pairwise(words))
    recipes = [value for option, value in options if option == "--config"]
    given = [value for option, value in options if option == "--train.output"]
    return given[0] if given else read_recipe(*recipes).train.output


@pytest.fixture(scope="module")
def trained(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the tiny recipe."""
    folder = tmp_path_factory.mktemp("trained")
    table = tiny.draw_table(folder / "table")
    arguments = ["--data.root", table, *TINY, "--train.output", folder / "run"]
    outcome = programs.run("train.py", "--config", "table", *arguments)
    assert outcome.code == 0, outcome.stderr
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if long_commands(page)])
def test_the_long_commands_of_a_page_run_one_after_another(
    programs: Programs, tmp_path: Path, tiny_model: Path, trained: Path, page: str
) -> None:
    for name in ("data/flickr8k", "data/coco"):
        tiny.draw_table(tmp_path / name)
    table = (tmp_path / "data/coco/captions.csv").read_text(encoding="utf-8")
    (tmp_path / "my.csv").write_text(re.sub(r"^(?=\d)", "data/coco/", table, flags=re.MULTILINE))
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    for words in long_commands(page):
        if words[0] == "train" and "--resume" not in words:
            shutil.rmtree(tmp_path / output_of(words), ignore_errors=True)
        elif words[0] != "train":
            for word in words[:-1] if words[0] in ("average", "export") else words:
                if word.startswith("runs/") and not (tmp_path / word).exists():
                    shutil.copytree(trained, tmp_path / word)
        if words[0] == "compare":
            for name in words[1:]:
                if not (tmp_path / name).exists():
                    shutil.copy(tmp_path / "results.json", tmp_path / name)
        outcome = programs.run("captioner", *in_tiny(words, tiny_model), cwd=tmp_path)
        assert outcome.code == 0, f"{' '.join(words)}: {outcome.stderr}"
