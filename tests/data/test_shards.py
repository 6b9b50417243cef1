"""`captioner shards`, and training from what it writes."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
import tiny
from cuts import Interrupted, interrupt

from captioner.batch.inputs import input_rows
from captioner.cli.shards import main
from captioner.data.captioned import Split
from captioner.data.layouts import read_split
from captioner.data.sources import captions_digest
from captioner.errors import DataError
from captioner.training import train


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.draw_table(tmp_path_factory.mktemp("table") / "photos", train=13)


@pytest.fixture(scope="module")
def written(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of three photos, so that an epoch of 13 begins and ends in the middle of one."""
    output = tmp_path_factory.mktemp("shards")
    write(table, output)
    return output


@pytest.fixture
def shards(written: Path, tmp_path: Path) -> Path:
    """A copy, to break."""
    return Path(shutil.copytree(written, tmp_path / "shards"))


def write(root: object, output: object, *options: str, format: str = "table") -> None:
    arguments = ["--root", str(root), "--output", str(output), "--photos-per-shard", "3"]
    assert main(["--format", format, *arguments, *options]) == 0


def read(root: object, split: str = "train", **options: Any) -> Split:
    return read_split(format="webdataset", root=str(root), split=split, **options)


def same(one: Split, two: Split) -> bool:
    return (
        captions_digest(one.images) == captions_digest(two.images)
        and contents(one) == contents(two)
        and [i.path.name for i in one.images] == [i.path.name for i in two.images]
    )


def contents(split: Split) -> list[bytes]:
    return [image.path.read_bytes() for image in split.images]


def losses(run: Path) -> list[dict[str, float]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in e.items() if k not in ("data_wait", "step_s")} for e in lines]


def test_shards_hold_what_the_data_set_holds(table: Path, written: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in written.glob("train*.tar")) == [
        f"train-{number:05d}-of-00005.tar" for number in range(5)
    ]
    for split in ("train", "val"):
        assert same(read(written, split), read_split(format="table", root=table, split=split))
    assert not same(read(written, "train"), read(written, "val"))
    again = tmp_path / "again"  # from shards too, and with the same bytes
    write(written, again, format="webdataset")
    assert {p.name: p.read_bytes() for p in again.iterdir()} == {
        p.name: p.read_bytes() for p in written.iterdir()
    }


def test_photos_that_are_in_two_splits_are_named(
    table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Training from the shards would validate on its photos."""
    rows = (table / "captions.csv").read_text() + "00.jpg,a disc,val\n"
    (table / "twice.csv").write_text(rows)
    try:
        with caplog.at_level("WARNING"):
            write(table / "twice.csv", tmp_path / "shards")
    finally:
        (table / "twice.csv").unlink()
    assert "photos are in train and in val" in caplog.text


def test_an_index_that_is_gone_is_made_again(written: Path, shards: Path) -> None:
    (index,) = shards.glob("val-00000*.jsonl")
    before = index.read_bytes()
    index.unlink()
    assert same(read(shards, "val"), read(written, "val"))
    assert index.read_bytes() == before


def test_half_of_a_surrogate_pair_in_a_caption_is_kept(tmp_path: Path) -> None:
    """As JSON may hold it where a text was cut in the middle of an emoji."""
    for split in ("train", "val"):
        tiny.photo(1)[0].save(tmp_path / f"{split}.png")
    lines = [
        {"image": f"{split}.png", "caption": "a disc \ud83d", "split": split}
        for split in ("train", "val")
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write(tmp_path / "t.jsonl", tmp_path / "shards")
    (index,) = (tmp_path / "shards").glob("val-*.jsonl")
    for _ in range(2):
        (image,) = read(tmp_path / "shards", "val").images
        assert image.captions == ("a disc \ud83d",)
        index.unlink()  # and from the tar file


def test_names_may_hold_what_patterns_and_lines_hold(table: Path, tmp_path: Path) -> None:
    """A folder `s[1]`, and a sign that Python takes for the end of a line."""
    shutil.copytree(table, tmp_path / "named")
    (tmp_path / "named" / "00.jpg").rename(tmp_path / "named" / "0\u20280.jpg")
    captions = tmp_path / "named" / "captions.csv"
    captions.write_text(
        captions.read_text(encoding="utf-8").replace("00.jpg", "0\u20280.jpg"), encoding="utf-8"
    )
    write(tmp_path / "named", tmp_path / "s[1]")
    assert len(read(tmp_path / "s[1]").images) == len(
        read_split(format="table", root=table, split="train").images
    )


def test_training_from_shards_is_training_from_the_folder_though_it_is_resumed_within_one(
    table: Path, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {name: tmp_path / name for name in ("folder", "shards", "cut")}
    once = {"train__epochs": 1}
    in_shards = {"data__format": "webdataset", **once}
    train(tiny.recipe(table, runs["folder"], **once))
    train(tiny.recipe(written, runs["shards"], data__workers=1, **in_shards))
    with monkeypatch.context() as patched:
        interrupt(patched, "learning_rate_factor", 4, Interrupted)
        with pytest.raises(Interrupted):
            train(tiny.recipe(written, runs["cut"], **in_shards))
    train(tiny.recipe(written, runs["cut"], **in_shards), resume=True)
    assert len(losses(runs["folder"])) > 4
    for name in ("shards", "cut"):
        assert losses(runs[name]) == losses(runs["folder"])
        ours, theirs = (
            (runs[each] / "last" / "model.safetensors").read_bytes() for each in ("folder", name)
        )
        assert ours == theirs


def test_shards_behind_a_url_are_read_by_their_pieces(table: Path, tmp_path: Path) -> None:
    write(table, "memory://far/shards")
    far = read("memory://far/shards")
    assert same(far, read_split(format="table", root=table, split="train"))
    train(
        tiny.recipe(
            "memory://far/shards",  # type: ignore[arg-type]
            tmp_path / "run",
            data__format="webdataset",
            data__cache=str(tmp_path / "cache"),
            train__epochs=1,
        )
    )
    system = fsspec.filesystem("memory")
    tar = "/far/shards/train-00000-of-00005.tar"
    system.pipe(tar, system.cat(tar)[:-1])
    with pytest.raises(DataError, match=r"00000-of-00005\.tar has 20479 bytes, not the 20480"):
        read("memory://far/shards")


def test_shards_of_others_are_read_by_their_captions(tmp_path: Path) -> None:
    """As img2dataset writes them: `caption` in the JSON; or a text alone."""
    photo = io.BytesIO()
    tiny.photo(1)[0].save(photo, "PNG")
    members = {"a/1.png": photo.getvalue(), "a/1.json": b'{"caption": "a  disc", "key": "1"}',
               "2.PNG": photo.getvalue(), "2.txt": b"a square\n", "3.png": photo.getvalue()}  # fmt: skip
    with tarfile.open(tmp_path / "cc-val-7.tar", "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    found = read(tmp_path, "val", file="cc-{split}-*.tar")
    assert [(i.image_id, i.captions, i.path.name) for i in found.images] == [
        ("cc-val-7/a/1", ("a disc",), "1.png"),
        ("cc-val-7/2", ("a square",), "2.PNG"),
    ]
    assert [image.image_id for image in found.uncaptioned] == ["cc-val-7/3"]


BROKEN: list[tuple[str, Any, str]] = [
    ("cut", lambda tar, index: tar.write_bytes(tar.read_bytes()[:-512]), "copy the tar file again"),
    ("gone", lambda tar, index: tar.unlink(), "00001-of-00005.tar is missing (1 of 5"),
    ("index", lambda tar, index: index.write_text("{}\n"), "index.jsonl is damaged"),
    (
        "cut without index",
        lambda tar, index: (index.unlink(), tar.write_bytes(tar.read_bytes()[:3000])),
        "no tar file that can be read to its end",
    ),
    (
        "no tar",
        lambda tar, index: (index.unlink(), tar.write_bytes(b"\x1f\x8bno tar" * 99)),
        "no tar file that can be read",
    ),
    (
        "two writings",
        lambda tar, index: shutil.copy(tar, tar.with_name("train-00000-of-00001.tar")),
        "shards of 00001 and of 00005",
    ),
]


@pytest.mark.parametrize(("name", "damage", "fact"), BROKEN, ids=[name for name, *_ in BROKEN])
def test_damaged_shards_are_one_sentence(shards: Path, name: str, damage: Any, fact: str) -> None:
    damage(shards / "train-00001-of-00005.tar", shards / "train-00001-of-00005.index.jsonl")
    with pytest.raises(DataError) as caught:
        read(shards)
    assert fact in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_shard_that_is_cut_while_a_run_reads_ends_the_run(shards: Path) -> None:
    split = read(shards)
    tar = shards / "train-00001-of-00005.tar"
    tar.write_bytes(tar.read_bytes()[:600])
    with pytest.raises(DataError, match="the tar file ends before it"):
        contents(split)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--split", "test9"), "has no split 'test9'"),
        (("--photos-per-shard", "2"), "holds other shards of split train"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(
    table: Path,
    shards: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    fact: str,
) -> None:
    arguments = ["--format", "table", "--root", str(table), "--output", str(shards), *options]
    assert main(arguments) == 2
    assert fact in capsys.readouterr().err


class LockedFileSystem(fsspec.AbstractFileSystem):
    """Raises, as those of packages do, what is no OSError."""

    protocol = "locked"

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        raise RuntimeError("no credentials\nand a second line")


def test_a_url_without_credentials_is_one_sentence(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fsspec.register_implementation("locked", LockedFileSystem, clobber=True)
    with pytest.raises(DataError, match=r"locked://bucket/shards/.*\(no credentials\)"):
        read("locked://bucket/shards")
    arguments = ["--format", "table", "--root", str(table), "--output", "locked://bucket/shards"]
    assert main(arguments) == 2
    assert "locked://bucket/shards: cannot be read (no credentials)" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"locked://bucket/photos: .*\(no credentials\)"):
        list(input_rows("locked://bucket/photos"))


def test_only_shards_are_read_from_afar(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="captioner shards"):
        read_split(format="coco", root="s3://bucket/coco", split="train2017")
