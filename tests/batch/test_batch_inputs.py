"""Which photos a collection holds, whatever form it has and wherever it lies."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
from batch_tools import PHOTOS

from captioner.batch.inputs import input_rows
from captioner.errors import DataError


def found(name: object, **options: Any) -> list[tuple[str, str]]:
    return list(input_rows(str(name), **options))


def test_a_folder_is_read_with_its_folders_by_name_without_what_is_no_photo(
    collection: Path,
) -> None:
    photos = found(collection)
    expected = [f"{folder}/{n:03d}.png" for folder, first in (("a", 0), ("b", 1)) for n in range(first, PHOTOS, 2)]  # fmt: skip
    assert [identity for identity, _ in photos] == [*expected, "b/broken.jpg"]
    assert all(path == str(collection / identity) for identity, path in photos)


def test_a_folder_inside_that_cannot_be_listed_is_no_folder_without_photos(
    collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def denied(path: str) -> Any:
        if os.path.basename(path) == "b":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(DataError, match=r"/b: cannot be read \(Permission denied\)"):
        found(collection)


def test_paths_of_a_list_begin_at_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "photos.txt"
    file.write_text("\ufeffone, two.jpg\r\n\n/far/three.jpg\ns3://bucket/four.jpg", "utf-8")
    assert found(file) == [
        ("one, two.jpg", f"{tmp_path}/one, two.jpg"),
        ("/far/three.jpg", "/far/three.jpg"),
        ("s3://bucket/four.jpg", "s3://bucket/four.jpg"),
    ]


@pytest.mark.parametrize("form", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_a_manifest_names_photos_and_if_it_likes_their_ids(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"photos.{form}"
    for columns, expected in (
        ({"id": ["7", ""], "path": ["a.jpg", "b.jpg"], "x": ["", ""]}, ["7", "b.jpg"]),
        ({"file_name": ["a.jpg", "b.jpg"], "width": [1, 2]}, ["a.jpg", "b.jpg"]),
        ({"Foto": ["a.jpg", "b.jpg"], "caption": ["x", "y"]}, ["a.jpg", "b.jpg"]),
    ):
        records = pa.table(columns).to_pylist()
        if form == "parquet":
            pq.write_table(pa.table(columns), file)
        elif form == "json":
            file.write_text(json.dumps(records))
        elif form == "jsonl":
            file.write_text("\n".join(map(json.dumps, records)))
        else:
            sign = {"csv": ",", "tsv": "\t"}[form]
            lines = [list(columns), *zip(*columns.values(), strict=True)]
            file.write_text("\n".join(sign.join(map(str, line)) for line in lines))
        named = {"image_column": "Foto"} if "Foto" in columns else {}
        assert found(file, **named) == [
            (identity, f"{tmp_path}/{path}")
            for identity, path in zip(expected, ["a.jpg", "b.jpg"], strict=True)
        ]


def test_a_captioned_data_set_gives_each_photo_once_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "Images").mkdir()
    for name in ("1.jpg", "2.jpg"):
        tiny.photo(1)[0].save(tmp_path / "Images" / name)
    table = tmp_path / "captions.txt"  # as Kaggle has Flickr8k
    table.write_text("image,caption\n" + "".join(f"{n}.jpg,a dog\n" * 2 for n in (1, 2, 3)))
    coco = tmp_path / "captions.json"
    images = [{"id": n, "file_name": f"{n}.jpg"} for n in (1, 2)]
    captions = [{"id": 1, "image_id": 1, "caption": "a dog"}]
    coco.write_text(json.dumps({"images": images, "annotations": captions}))
    on_disk = [(f"Images/{n}.jpg", f"{tmp_path}/Images/{n}.jpg") for n in (1, 2)]
    assert found(table)[:2] == found(coco) == on_disk
    assert [Path(path).name for _, path in found(table)[2:]] == ["3.jpg"], "missing, and a row"


def test_urls_are_read_as_folders_and_lists_are() -> None:
    system = fsspec.filesystem("memory")
    system.pipe("/photos/b/two.JPG", b"2")
    system.pipe("/photos/one.png", b"1")
    system.pipe("/photos/list.txt", b"one.png\n")
    system.pipe("/photos/list.csv", b"id,path\n7,one.png\n")
    assert found("memory://photos") == [
        ("one.png", "memory:///photos/one.png"),
        ("b/two.JPG", "memory:///photos/b/two.JPG"),
    ]
    assert found("memory://photos/list.txt") == [("one.png", "memory://photos/one.png")]
    assert found("memory://photos/list.csv") == [("7", "memory://photos/one.png")]


@pytest.mark.parametrize(
    ("name", "content", "fact"),
    [
        ("none", None, "no such file"),
        ("a.csv", "foto,id\nx,1\n", "with --image-column"),
        ("a.jsonl", '{"image": "a.jpg"}\n{', "a.jsonl, line 2"),
        ("a.parquet", "no parquet", "a.parquet: is no list or table of photos that can be read"),
        ("{0..1}.tar", None, "0.tar: no such file"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: str | None, fact: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as refused:
        found(tmp_path / name)
    assert fact in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_rows_without_a_photo_are_counted_and_the_others_read(tmp_path: Path, caplog) -> None:
    (tmp_path / "a.csv").write_text("path,id\nx.jpg,1\n,2\ny.jpg,3\n,4\n")
    assert [identity for identity, _ in found(tmp_path / "a.csv")] == ["1", "3"]
    assert "a.csv: 2 rows without a path, the first is row 2" in caplog.text


def test_photos_inside_a_parquet_file_are_refused(tmp_path: Path) -> None:
    photo = {"bytes": b"...", "path": "a.jpg"}  # as data sets on Hugging Face have it
    pq.write_table(pa.table({"image": [photo]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet, row 1: the image is .* holds as files"):
        found(tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1], "Foto": ["a.jpg"]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="its columns are id, Foto"):
        found(tmp_path / "b.parquet")
