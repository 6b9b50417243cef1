"""Every command in README and docs is one that captioner understands; what can run offline runs."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from programs import REPOSITORY, Commands, ProgramResult

from captioner.__main__ import main
from captioner.cli import COMMANDS, parsing

DOCS = REPOSITORY / "docs"
PAGES = ["README.md", *(f"docs/{path.relative_to(DOCS).as_posix()}" for path in DOCS.rglob("*.md"))]
PAGES.append("CHANGELOG.md")
PAGES.sort()
SCRIPTS = {"caption.py": "caption", "train.py": "train"}


def code_blocks(page: str, *languages: str) -> list[str]:
    """The page's code blocks of these languages, those in lists too."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [content for language, content in blocks if language in languages]


def commands_in(page: str) -> Iterator[list[str]]:
    """Each captioner command in the page's code blocks, as the command's name and its arguments."""
    for block in code_blocks(page, "", "sh", "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ").partition(" #")[0]
            # Variables that are set for a command, and the starter of several processes.
            line = re.sub(r"^[A-Z_]+=\S+ |^torchrun .*?(?=train\.py)", "", line)
            line = re.sub(r"^train\.py", "python train.py", line)
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
    page: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words, f"{page} shows captioner without a command"
    assert words[0] in COMMANDS or words[0].startswith("-"), f"{page}: no command {words[0]}"
    for option, value in itertools.pairwise(words):
        if option == "--config":
            file = value if value.endswith(".yaml") else f"configs/{value}.yaml"
            assert (REPOSITORY / file).is_file(), f"{page} names {value}"
    if words[0] not in COMMANDS:
        return

    def stop(arguments: object) -> None:
        raise Parsed

    monkeypatch.setattr(parsing, "set_log_level", stop)  # as soon as the arguments are parsed
    monkeypatch.chdir(REPOSITORY)
    with pytest.raises((Parsed, SystemExit)) as outcome:
        main(words)
    if outcome.type is SystemExit:  # --help
        assert outcome.value.code == 0, f"{page}: {capsys.readouterr().err}"


def test_pages_with_commands_are_found() -> None:
    """The pattern of `commands_in` finds the blocks, or this file would test nothing."""
    assert {"README.md", "docs/command-line.md", "docs/training.md", "docs/evaluation.md"} <= {
        page for page, _ in DOCUMENTED
    }
    assert len(DOCUMENTED) > 80
    texts = [" ".join(words) for _, words in DOCUMENTED]
    assert "serve --host 0.0.0.0 --port 8080" in texts  # behind a variable
    assert any("families/hard_paper" in text for text in texts)  # in a list


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the documented commands name: photos, a page, a table."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("photo.jpg", "holiday/one.jpg", "holiday/two.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        tiny.photo(len(name))[0].save(folder / name)
    shutil.copytree(DOCS / "photos", folder / "docs/photos")
    (folder / "index.html").write_text('<img src="photo.jpg">')
    return folder


RUN = {"caption", "score", "doctor"}
# They need another model, or standard input; tests/cli/test_caption_command.py saves all.
UNFIT = {"--min-confidence", "--compare", "--paths", "-", "all"}


def runnable() -> Iterator[list[str]]:
    """The commands of README and the command line's page that need neither data nor network."""
    seen = set()
    for _, words in DOCUMENTED:
        text = " ".join(words)
        if words[0] in RUN and text not in seen:
            seen.add(text)
            if not UNFIT & set(words):
                yield words


@pytest.mark.parametrize("words", list(runnable()), ids=" ".join)
def test_a_documented_command_runs(
    commands: Commands, tiny_model: Path, checkout: Path, words: list[str]
) -> None:
    """On a tiny model, because the bundled one takes its seconds: its name is all that differs."""
    arguments = list(words)
    if "--model" in arguments:
        place = arguments.index("--model")
        del arguments[place : place + 2]
    if words[0] in ("caption", "score"):
        arguments += ["--checkpoint", str(tiny_model), "--device", "cpu"]
    outcome: ProgramResult = commands.run("captioner", *arguments, cwd=checkout)
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout or "--resume" in words


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, "CONTRIBUTING.md"]:
        file = REPOSITORY / page
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read_text(encoding="utf-8")):
            assert (file.parent / target).exists(), f"{page} links to {target}"


def test_code_named_on_a_page_is_there() -> None:
    """Files of the package, of benchmarks and tests, as a page names them in backticks."""
    made_by_the_reader = {"captioner/models/attention/distance.py", "train.py", "caption.py"}
    for page in PAGES:
        text = (REPOSITORY / page).read_text(encoding="utf-8")
        for name in set(re.findall(r"`([a-z_/]+\.py)`", text)) - made_by_the_reader:
            assert any((REPOSITORY / place / name).is_file() for place in ("", "captioner")), (
                f"{page} names {name}"
            )
        for module in re.findall(r"python -m (benchmarks\.\w+)", text):
            file = REPOSITORY / f"{module.replace('.', '/')}.py"
            assert file.is_file(), f"{page} names {module}"


WORDS = {
    "README.md": 900,
    "CHANGELOG.md": 900,
    "docs/experiments.md": 900,
    "docs/performance.md": 700,
    "docs/reliability.md": 700,
}


def words_of(page: str) -> int:
    """Number of words, without the bars of tables and other signs that are not read."""
    return len(re.findall(r"\S*\w\S*", (REPOSITORY / page).read_text(encoding="utf-8")))


def test_pages_fit_a_short_reading_and_all_an_evening() -> None:
    assert not {page for page, most in WORDS.items() if words_of(page) > most}
    assert sum(map(words_of, PAGES)) <= 16_000


def sentences(page: str) -> Iterator[str]:
    """The page's sentences, without code, tables, headings and pictures."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(    .*|\|.*|#.*|!\[.*)$", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    for block in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", text, flags=re.MULTILINE):
        for sentence in re.split(r"(?<=[.!?:])\s+", block.strip()):
            if re.search(r"\w", sentence):
                yield " ".join(sentence.split())


@pytest.mark.parametrize("page", PAGES)
def test_sentences_have_at_most_40_words_and_20_on_average(page: str) -> None:
    lengths = {each: len(re.findall(r"\w\S*", each)) for each in sentences(page)}
    assert not [each for each, length in lengths.items() if length > 40]
    assert sum(lengths.values()) <= 20 * len(lengths)
