"""`caption.py --compare`, and how hard attention chooses its cells."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image
from programs import Commands

from captioner import Captioner


def test_one_sheet_has_a_row_a_model(
    commands: Commands, tiny_model: Path, tiny_hard_model: Path, photo: Path, tmp_path: Path
) -> None:
    compare = ["caption.py", photo, "--device", "cpu", "--compare", tiny_model, tiny_hard_model]
    options = ["--output", tmp_path / "out", "--json", "--paths", "3"]
    outcome = commands.run(*compare, *options, cwd=tmp_path)
    assert (outcome.code, outcome.stderr) == (0, "")
    soft, hard = map(json.loads, outcome.stdout.splitlines())
    assert (soft["model"], hard["model"]) == (str(tiny_model), str(tiny_hard_model))
    assert "cells" not in soft
    assert "paths" not in soft
    assert len(hard["cells"]) == len(hard["words"])
    assert [len(path) for path in hard["paths"]] == 3 * [len(hard["words"])]
    assert soft["pictures"] == [str(tmp_path / "out" / "photo.comparison.png")]
    with Image.open(soft["pictures"][0]) as sheet:
        assert sheet.height > 500
    for model, line in ((tiny_model, soft), (tiny_hard_model, hard)):
        assert line["caption"] == Captioner.from_pretrained(model, device="cpu").caption(photo).text
    assert commands.run(*compare, cwd=tmp_path).stdout.splitlines() == [
        str(photo),
        f"  {tiny_model}: {soft['caption']}",
        f"  {tiny_hard_model}: {hard['caption']}",
    ]


def test_hard_attention_follows_at_test(
    commands: Commands, tiny_hard_model: Path, photo: Path
) -> None:
    options = ("--checkpoint", tiny_hard_model, "--at-test", "expectation", "--json")
    outcome = commands.run("caption.py", photo, *options)
    assert outcome.code == 0, outcome.stderr
    assert "cells" not in json.loads(outcome.stdout)
