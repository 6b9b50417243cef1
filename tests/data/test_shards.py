"""Training from WebDataset shards."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import tiny
from cuts import Interrupted, interrupt
from drawn_layouts import jpeg, tar

from captioner.data.splits import Split
from captioner.training import train


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Shards of three photos, so that an epoch of 13 begins and ends in the middle of one."""
    table = tiny.draw_table(tmp_path / "photos", train=13)
    splits: dict[str, list[dict[str, str]]] = {"train": [], "val": [], "test": []}
    captions: dict[str, list[str]] = {}
    with (table / "captions.csv").open() as file:
        for row in csv.DictReader(file):
            if row["image"] not in captions:
                splits[row["split"]].append(row)
            captions.setdefault(row["image"], []).append(row["caption"])
    for split, rows in splits.items():
        for first in range(0, len(rows), 3):
            members = {}
            for row in rows[first : first + 3]:
                facts = {"id": Path(row["image"]).stem, "captions": captions[row["image"]]}
                members[row["image"]] = (table / row["image"]).read_bytes()
                members[Path(row["image"]).stem + ".json"] = json.dumps(facts).encode()
            tar(tmp_path / "shards" / f"{split}-{first:05d}.tar", members)
    return tmp_path / "shards"


def contents(split: Split) -> list[bytes]:
    return [image.path.read_bytes() for image in split.images]


def test_training_from_shards_is_training_from_the_folder_though_it_is_resumed_within_one(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = tmp_path / "photos"
    for split in ("train", "val"):
        from_shards, from_folder = (tiny.read_split(root=r, split=split) for r in (shards, photos))
        assert contents(from_shards) == contents(from_folder)
        assert [i.image_id for i in from_shards.images] == [i.path.stem for i in from_folder.images]
        assert [i.captions for i in from_shards.images] == [i.captions for i in from_folder.images]
    runs = {name: tmp_path / name for name in ("folder", "whole", "cut")}
    once = {"train__epochs": 1}
    in_shards = {"data__format": "webdataset", **once}
    train(tiny.recipe(photos, runs["folder"], **once))
    train(tiny.recipe(shards, runs["whole"], data__workers=1, **in_shards))
    with monkeypatch.context() as patched:
        interrupt(patched, "learning_rate_factor", 4, Interrupted)
        with pytest.raises(Interrupted):
            train(tiny.recipe(shards, runs["cut"], **in_shards))
    train(tiny.recipe(shards, runs["cut"], **in_shards), resume=True)
    assert len(tiny.log_entries(runs["folder"])) > 4
    for name in ("whole", "cut"):
        assert tiny.log_entries(runs[name]) == tiny.log_entries(runs["folder"])
        ours, theirs = (
            (runs[each] / "last" / "model.safetensors").read_bytes() for each in ("folder", name)
        )
        assert ours == theirs


def test_captions_are_those_of_the_json_else_of_the_text(tmp_path: Path) -> None:
    members = {"a/1.jpg": jpeg(1), "a/1.json": b'{"caption": "a  disc", "key": "1"}',
               "2.JPG": jpeg(2), "2.txt": b"a square\n", "3.jpg": jpeg(3)}  # fmt: skip
    tar(tmp_path / "cc-7.tar", members)
    found = tiny.read_split(root=tmp_path, split="all")
    assert [(i.image_id, i.captions, i.path.name) for i in found.images] == [
        ("cc-7/a/1", ("a disc",), "1.jpg"),
        ("cc-7/2", ("a square",), "2.JPG"),
    ]
    assert [image.image_id for image in found.uncaptioned] == ["cc-7/3"]
