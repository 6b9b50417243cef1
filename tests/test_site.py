"""The docs site: it builds, its reference comes from the code, and its examples work."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from programs import REPOSITORY
from test_docs import code_blocks

from captioner.cli import COMMANDS
from captioner.config.settings import Config
from docs.hooks import commands

ADD_ATTENTION = "docs/tutorials/add-attention.md"


def test_the_site_builds_without_a_warning_and_its_reference_is_complete(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs_autorefs")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    reference = tmp_path / "site/reference"
    commands = (reference / "commands/index.html").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"usage: captioner {name}" in commands
    settings = (reference / "settings/index.html").read_text(encoding="utf-8")
    for section, value in vars(Config()).items():
        for field in dataclasses.fields(value):
            row = re.search(rf"<code>{section}.{field.name}</code></td>(.*?)</tr>", settings, re.S)
            assert row, f"{section}.{field.name}"
            default, meaning = re.findall(r"<td>(.*?)</td>", row[1], re.S)
            assert len(re.sub(r"<.*?>", "", meaning)) > 8, row[1]
            assert default.startswith("<code>"), row[1]
    python = (reference / "python/index.html").read_text(encoding="utf-8")
    for name in ("caption_batch", "captions", "options", "score"):
        assert f'id="captioner.captioner.Captioner.{name}"' in python


def test_options_and_settings_that_a_page_names_exist() -> None:
    """In running text and tables; tests/test_docs.py tries the commands of code blocks."""
    options = set(re.findall(r"--[a-z][a-z_-]+", commands()))
    settings = {
        f"{section}.{field.name}"
        for section, value in vars(Config()).items()
        for field in dataclasses.fields(value)
    }
    sections = "|".join(vars(Config()))
    for page in [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]:
        text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for code in re.findall(r"`([^`\n]+)`", text):
            if "benchmarks" in code or code.startswith("--max-restarts"):  # torchrun's
                continue
            for option in re.findall(r"(?<!\S)--[a-z][a-z-]+(?![a-z_.])", code):
                assert option in options, f"{page.name} names {option}"
            for setting in re.findall(rf"(?<![/.\w])(?:{sections})\.[a-z_]+(?![/\w])", code):
                is_file = setting.endswith((".py", ".csv", ".onnx"))
                assert is_file or setting in settings, f"{page.name} names {setting}"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (REPOSITORY / "docs").rglob("*.md"):
        assert f" {page.relative_to(REPOSITORY / 'docs').as_posix()}\n" in navigation


@pytest.mark.slow
def test_an_attention_mechanism_is_added_as_its_page_says(tmp_path: Path) -> None:
    """In a copy of the package: the page's file, the page's line, and a model that learns with it."""
    page = (REPOSITORY / ADD_ATTENTION).read_text(encoding="utf-8")
    file, line = code_blocks(ADD_ATTENTION, "python")
    bundled = shutil.ignore_patterns("bundled", "__pycache__")
    shutil.copytree(REPOSITORY / "captioner", tmp_path / "captioner", ignore=bundled)
    place = re.search(r"\*\*1\.\*\* The file `(.*)`", page)
    (tmp_path / place[1]).write_text(file, encoding="utf-8")
    registry = tmp_path / "captioner/registry.py"
    before = registry.read_text(encoding="utf-8")
    start = 'SCORES = Registry(\n    "attention.score",\n'
    assert line.startswith(start)
    registry.write_text(before.replace(start, line), encoding="utf-8")
    assert before.count(start) == 1
    table = tiny.draw_table(tmp_path / "photos")
    code = f"""
import sys; sys.path.append({str(REPOSITORY / "tests")!r})
import torch, tiny
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from captioner import Captioner
from captioner.models.attention.attention import Attention
from captioner.config import AttentionConfig
from captioner.training import train
from captioner.types import Grid
score = Attention(AttentionConfig("distance", dim=4), query_dim=3, feature_dim=5).score.double()
h, a = torch.randn(2, 3, 3, dtype=torch.double), torch.randn(2, 6, 5, dtype=torch.double)
found = score(h, score.keys(a))
for b in range(2):
    for k in range(3):
        for i in range(6):
            distance = score.query(h[b, k]) - score.key(a[b, i])
            torch.testing.assert_close(found[b, 0, k, i], -(distance @ distance) / 2)
for heads in (1, 2):
    run = Path({str(tmp_path)!r}, f"run{{heads}}")
    best = train(tiny.recipe(Path({str(table)!r}), run, attention__score="distance",
        attention__heads=heads, train__epochs=1))
    print(heads, Captioner.from_pretrained(best, device="cpu").caption(tiny.photo(1)[0]).maps.sum())
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 2


def texts_of(cell: dict[str, Any]) -> Iterator[str]:
    """The text of each output of a notebook's cell."""
    for output in cell.get("outputs", []):
        yield output.get("text") or output["data"]["text/plain"]


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(REPOSITORY / "docs/notebook.ipynb", as_version=4)
    stored = [text for cell in notebook.cells for text in texts_of(cell)]
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(REPOSITORY)}}
    ).execute()
    assert [text for cell in notebook.cells for text in texts_of(cell)] == stored
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("text/html" in output.get("data", {}) for output in outputs)  # the caption, drawn
    assert sum("x uniform" in output.get("text", "") for output in outputs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/tutorials/caption.md"])
def test_python_on_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.photo(1)[0].save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    blocks = code_blocks(page, "python")
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})
