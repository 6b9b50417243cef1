"""`captioner score` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from programs import ProgramResult

from captioner import Captioner

Run = Callable[..., ProgramResult]
TEXT = "A red disc, on the Table!"


def test_a_caption_is_read_drawn_and_weighed(
    run: Run, tiny_model: Path, photo: Path, tmp_path: Path
) -> None:
    options = ("--output", tmp_path / "out", "--words", "--save", "html,npz", "--json")
    outcome = run("score", photo, TEXT, *options)
    assert outcome.code == 0
    assert outcome.stderr == "read as unknown words: table\n"
    line = json.loads(outcome.stdout)
    assert line["words"] == "a red disc on the table".split()
    expected = Captioner.from_pretrained(tiny_model, device="cpu").score(photo, TEXT)
    assert line["log_probs"] == pytest.approx(expected.log_probs.tolist(), abs=1e-5)
    assert line["end_log_prob"] == pytest.approx(expected.end_log_prob, abs=1e-5)
    kinds = [path.partition(".")[2] for path in line["pictures"]]
    assert {"attention.png", "attention.html", "attention.npz"} < set(kinds)
    assert len(kinds) == 3 + 6
    with Image.open(tmp_path / "out" / "photo.attention.png") as sheet:
        assert sheet.width > 500


def test_the_text_says_how_likely_the_whole_is(run: Run, tiny_model: Path, photo: Path) -> None:
    outcome = run("score", photo, "a red disc")
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
    as_json = json.loads(run("score", photo, "a red disc", "--json").stdout)
    assert as_json["model_caption"]["log_prob"] == pytest.approx(total, abs=1e-5)
