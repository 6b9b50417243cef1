"""`captioner score` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from PIL import Image
from programs import Commands, ProgramResult, Programs, Runs

from captioner import Captioner

TEXT = "A red disc, on the table!"


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    tiny.photo(1)[0].save(path)
    return path


def run(commands: Runs, model: Path, tmp_path: Path, *arguments: object) -> ProgramResult:
    options = ["--checkpoint", model, "--device", "cpu"]
    return commands.run("captioner", "score", *arguments, *options, cwd=tmp_path)


def test_a_caption_is_read_drawn_and_weighed(
    programs: Programs, tiny_model: Path, photo: Path, tmp_path: Path
) -> None:
    outcome = run(
        programs,
        tiny_model,
        tmp_path,
        photo,
        TEXT,
        "--output",
        tmp_path / "out",
        "--words",
        "--json",
    )
    assert outcome.code == 0
    assert outcome.stderr.splitlines() == ["read as unknown words: table"]
    line = json.loads(outcome.stdout)
    assert line["words"] == "a red disc on the table".split()
    expected = Captioner.from_pretrained(tiny_model, device="cpu").score(photo, TEXT)
    assert line["log_probs"] == pytest.approx(expected.log_probs.tolist(), abs=1e-5)
    assert line["end_log_prob"] == pytest.approx(expected.end_log_prob, abs=1e-5)
    assert len(line["pictures"]) == 1 + 6
    with Image.open(tmp_path / "out" / "photo.attention.png") as sheet:
        assert sheet.width > 500


def test_the_text_says_how_likely_the_whole_is(
    commands: Commands, tiny_model: Path, photo: Path, tmp_path: Path
) -> None:
    outcome = run(commands, tiny_model, tmp_path, photo, "a red disc")
    captioner = Captioner.from_pretrained(tiny_model, device="cpu")
    lines = outcome.stdout.splitlines()
    for line, start, caption in (
        (lines[0], f"{photo}: a red disc", captioner.score(photo, "a red disc")),
        (lines[1], "  the model's own: ", captioner.caption(photo)),
    ):
        assert line.startswith(start)
        total = float(caption.log_probs.sum()) + (caption.end_log_prob or 0)
        a_word = total / (len(caption.words) + 1)
        assert line.endswith(f" (log-probability {total:.2f}, {a_word:.2f} a word)")
    assert outcome.stderr == ""
    as_json = json.loads(run(commands, tiny_model, tmp_path, photo, "a red disc", "--json").stdout)
    assert as_json["model_caption"]["log_prob"] == pytest.approx(total, abs=1e-5)


def test_words_and_characters_that_the_model_does_not_know_are_named(
    commands: Commands, tiny_model: Path, photo: Path, tmp_path: Path
) -> None:
    outcome = run(commands, tiny_model, tmp_path, photo, "a Zebra! \U0001f415 €")
    assert "read as unknown words: zebra" in outcome.stderr
    assert outcome.stderr.splitlines()[-1].endswith("no such characters: \U0001f415 €")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["photo.jpg", "?!"], "has no words"),
        (["nothing.jpg", "a red disc"], "nothing.jpg: "),
        (["photo.jpg"], "CAPTION"),
        (["photo.jpg", "a", "--at-test", "sample"], "hard attention"),
        (["photo.jpg", "a", "--beam-size", "3"], "there is no option --beam-size"),
    ],
)
def test_unusable_input_of_score_is_one_sentence(
    commands: Commands,
    tiny_model: Path,
    photo: Path,
    tmp_path: Path,
    arguments: list[str],
    told: str,
) -> None:
    outcome = run(commands, tiny_model, tmp_path, *arguments)
    assert outcome.code == 2
    assert told in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.stdout == ""
