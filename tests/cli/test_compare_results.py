"""`captioner compare`: two evaluations side by side."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from programs import Commands, Programs

from captioner.evaluation.metrics import score_captions
from captioner.evaluation.results import write_json

WORDS = "man dog red ball park tree runs sits on the a big old blue near".split()


def write(path: Path, captions: dict[int, str], references: dict[int, list[str]]) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/nowhere")  # no Java, which takes seconds
        scores = score_captions(captions, references)
    write_json(path, vars(scores))
    return path


@pytest.fixture
def references() -> dict[int, list[str]]:
    generator = random.Random(0)
    return {n: [" ".join(generator.choices(WORDS, k=9)) for _ in range(3)] for n in range(40)}


def test_a_better_model_is_distinguished_from_a_worse_one(
    commands: Commands, tmp_path: Path, references: dict[int, list[str]]
) -> None:
    good = {n: texts[0] for n, texts in references.items()}
    poor = {n: " ".join([*text.split()[:5], "tree", "a"]) for n, text in good.items()}
    a = write(tmp_path / "a.json", poor, references)
    b = write(tmp_path / "b.json", good, references)
    outcome = commands.run("captioner", "compare", a, b)
    assert (outcome.code, outcome.stderr) == (0, "")
    rows = {line.split()[0]: line.split() for line in outcome.stdout.splitlines() if line.split()}
    metrics = json.loads(b.read_text())["metrics"]
    assert {"Bleu_1", "Bleu_4", "ROUGE_L", "CIDEr"} <= rows.keys()
    assert "METEOR" not in rows, "not computed, not compared"
    for name in ("Bleu_4", "CIDEr"):
        _, first, second, gap, *_, p = rows[name]
        assert float(second) == pytest.approx(metrics[name], abs=1e-4)
        assert float(gap) == pytest.approx(float(second) - float(first), abs=2e-4)
        assert gap.startswith("+")
        assert float(p) < 0.01


def test_results_that_cannot_be_compared_are_refused_in_one_sentence(
    programs: Programs, tmp_path: Path, references: dict[int, list[str]]
) -> None:
    whole = write(tmp_path / "a.json", {n: t[0] for n, t in references.items()}, references)
    part = {n: texts for n, texts in references.items() if n < 30}
    less = write(tmp_path / "b.json", {n: t[0] for n, t in part.items()}, part)
    old = tmp_path / "old.json"
    write_json(old, {"metrics": {}, "captions": [], "signature": {}})
    for other, said in (
        (less, "10 are in one alone, such as 30"),
        (old, "holds captions without scores; name the references with --root"),
        (tmp_path / "none.json", "cannot be read"),
    ):
        outcome = programs.run("captioner", "compare", whole, other)
        assert outcome.code == 2, other
        assert said in outcome.stderr, outcome.stderr
        assert outcome.stderr.count("error:") == 1
        assert "Traceback" not in outcome.stderr


def test_captions_without_scores_are_scored_against_the_references_first(
    commands: Commands, tmp_path: Path, references: dict[int, list[str]]
) -> None:
    rows = [f"{n}.jpg,{text}" for n, texts in references.items() for text in texts]
    table = tmp_path / "captions.csv"
    table.write_text("\n".join(["image,caption", *rows]))
    good = [{"image_id": f"{n}.jpg", "caption": texts[0]} for n, texts in references.items()]
    poor = [{**row, "caption": row["caption"][:9]} for row in good]
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(poor))
    b.write_text(json.dumps(good))
    options = ["--format", "table", "--root", table]
    outcome = commands.run("captioner", "compare", a, b, *options, PATH="/nowhere")
    assert outcome.code == 0, outcome
    line = next(line for line in outcome.stdout.splitlines() if line.startswith("Bleu_1"))
    _, first, second, *_ = line.split()
    assert float(first) < float(second) == 1
