"""What a run writes for people: one line of JSON an entry, and the same in TensorBoard."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import tiny
import yaml
from PIL import Image

from captioner.config import from_yaml
from captioner.config.settings import Config
from captioner.training.run_log import RunLog, model_card


def events(run: Path) -> object:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    return found


def test_an_entry_is_one_line_of_json_and_a_scalar_in_tensorboard(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "new" / "run", 0)
    log.write("train", 1, {"epoch": 0, "total": 2.5, "note": "text", "norm": float("inf")})
    log.write("validation", 2, {"epoch": 0, "CIDEr": 0.25})
    log.pictures(2, [Image.new("RGB", (8, 6), "red"), Image.new("RGB", (4, 4))])
    log.close()
    assert tiny.log_entries(tmp_path / "new" / "run") == [
        {"kind": "train", "step": 1, "epoch": 0, "total": 2.5, "note": "text", "norm": None},
        {"kind": "validation", "step": 2, "epoch": 0, "CIDEr": 0.25},
    ]
    found = events(tmp_path / "new" / "run")
    assert [(e.step, e.value) for e in found.Scalars("train/total")] == [(1, 2.5)]
    assert [(e.step, e.value) for e in found.Scalars("validation/CIDEr")] == [(2, 0.25)]
    assert sorted(found.Tags()["images"]) == ["samples/0", "samples/1"]
    (picture,) = found.Images("samples/0")
    assert (picture.width, picture.height) == (8, 6)


def test_a_resumed_run_forgets_the_entries_after_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RunLog(tmp_path, 0)
    for step in range(1, 6):
        log.write("train", step, {"total": 1.0})
    log.write("validation", 5, {"CIDEr": 0.1})
    log.close()
    # TensorBoard orders files by the second in their names, then by a number written as text.
    later = time.time() + 2
    monkeypatch.setattr(time, "time", lambda: later)
    log = RunLog(tmp_path, 3)
    assert [entry["step"] for entry in tiny.log_entries(tmp_path)] == [1, 2, 3]
    for step in (4, 5):
        log.write("train", step, {"total": 2.0})
    log.close()
    assert [entry["step"] for entry in tiny.log_entries(tmp_path)] == [1, 2, 3, 4, 5]
    assert [entry["total"] for entry in tiny.log_entries(tmp_path)] == [1, 1, 1, 2, 2]
    scalars = events(tmp_path).Scalars("train/total")
    assert [(e.step, e.value) for e in scalars] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("line", [b"\xff\x80", b"[1]", b'{"kind": "train"}', b'{"st'])
def test_a_damaged_line_is_forgotten_and_the_others_stay(line: bytes, tmp_path: Path) -> None:
    good = b'{"kind": "train", "step": 1}\n'
    (tmp_path / "metrics.jsonl").write_bytes(good + line + b"\n" + good)
    RunLog(tmp_path, 5).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == good + good


CONFIG = tiny.recipe(Path("photos"), Path("run"))
SOURCES = """
data:
  sources:
    - {name: flickr8k, root: a}
    - {name: web, format: table, root: b, val_split: null}
"""


def test_the_card_tells_the_model_the_data_and_the_figures() -> None:
    card = model_card(
        CONFIG, {"epoch": 3, "CIDEr": 0.51239, "Bleu_4": 0.2}, {"training captions": "0f3a"}
    )
    _, front_matter, text = card.split("---\n", 2)  # as model hubs read it
    assert yaml.safe_load(front_matter)["pipeline_tag"] == "image-to-text"
    assert text.startswith("# ")
    assert card.endswith("\n")
    for fact in ("soft attention", "timm/test_resnet", "table", "split train", "epoch 3", "beam 2"):
        assert fact in card, fact
    assert "| CIDEr | 0.5124 |" in card
    assert "| Bleu_4 | 0.2000 |" in card
    assert "| training captions | 0f3a |" in card
    assert "| epoch" not in card


def test_the_card_names_every_source() -> None:
    card = model_card(from_yaml(Config, SOURCES), {"epoch": 1, "CIDEr": 0.5}, {})
    assert "trained on split train of flickr8k and split train of web" in card
    assert "On split val of flickr8k, epoch 1" in card


def test_a_model_that_was_not_validated_says_so() -> None:
    card = model_card(CONFIG, {}, {})
    assert "Not validated yet." in card
    assert "|" not in card.partition("## Made with")[0]
