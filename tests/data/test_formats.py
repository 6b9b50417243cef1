"""Readers of captioned photos: each format from small files, each error sentence, the real data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from drawn_layouts import sentence
from tiny import read_split

from captioner.data.layouts import CaptionedData, DataFiles
from captioner.data.splits import CaptionedImage, Split

DEEP = "[" * 100_000


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(split: Split) -> list[str]:
    return [photo.path.name for photo in split.images]


def ids(split: Split) -> list[int | str]:
    return [photo.image_id for photo in split.images]


@pytest.fixture
def flickr8k(tmp_path: Path) -> Path:
    touch(tmp_path / "images", "a.jpg", "b.jpg", "c.jpg", "unused.jpg")
    (tmp_path / "Flickr8k.token.txt").write_text(
        "c.jpg#0\tA cat, a dog, a bird .\nc.jpg#1\tThe  cat sits .\na.jpg#0\tA dog .\n"
        'odd.jpg.1#0\tin no split\nb.jpg#0\t"A bird .\n'
    )
    (tmp_path / "Flickr_8k.trainImages.txt").write_text("b.jpg\nc.jpg\n")
    (tmp_path / "Flickr_8k.devImages.txt").write_text("a.jpg\n")
    return tmp_path


def test_flickr8k_gives_captions_ids_and_the_order_of_the_split_file(flickr8k: Path) -> None:
    images = [
        CaptionedImage(flickr8k / "images" / "b.jpg", ('"A bird .',), 3),  # an open quote
        CaptionedImage(
            flickr8k / "images" / "c.jpg", ("A cat, a dog, a bird .", "The cat sits ."), 0
        ),
    ]
    assert read_split(format="flickr8k", root=flickr8k, split="train") == Split(images, [])
    for path in flickr8k.glob("*.txt"):  # byte order mark, carriage returns, blank lines
        text = path.read_bytes().replace(b"\n", b"\r\n")
        path.write_bytes(b"\xef\xbb\xbf" + text + b"\r\n  \r\n")
    assert read_split(format="flickr8k", root=flickr8k, split="train") == Split(images, [])
    (flickr8k / "Flickr_8k.trainImages.txt").write_text("b.jpg\n\nnobody.jpg\n")
    train = read_split(format="flickr8k", root=flickr8k, split="train")
    assert train.missing == [flickr8k / "images" / "nobody.jpg"]


def test_flickr8k_takes_val_for_dev_joins_splits_and_keeps_ids_without_a_photo(
    flickr8k: Path,
) -> None:
    assert names(read_split(format="flickr8k", root=flickr8k, split="dev")) == ["a.jpg"]
    joined = read_split(format="flickr8k", root=str(flickr8k), split="train + val+dev")
    assert (names(joined), ids(joined)) == (["b.jpg", "c.jpg", "a.jpg"], [3, 0, 1])
    (flickr8k / "images" / "b.jpg").unlink()
    split = read_split(format="flickr8k", root=flickr8k, split="train+dev")
    assert (split.missing, ids(split)) == ([flickr8k / "images" / "b.jpg"], [0, 1])


def karpathy_image(name: str, split: str, *captions: str, **more: object) -> dict[str, object]:
    sentences = [{"raw": caption, "tokens": ["not", "these"]} for caption in captions]
    return {"filename": name, "split": split, "sentences": sentences, **more}


def write_karpathy(folder: Path, *images: object, name: str = "dataset_flickr8k.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"images": images, "dataset": "flickr8k"}))
    return path


def test_karpathy_reads_raw_captions_and_positions_as_ids(tmp_path: Path) -> None:
    touch(tmp_path / "images", "a.jpg", "c.jpg")
    write_karpathy(
        tmp_path,
        karpathy_image("a.jpg", "train", "A dog.\n", "Dog!"),
        karpathy_image("b.jpg", "val", "A café."),
        karpathy_image("c.jpg", "train", "A cat."),
        karpathy_image("d.jpg", "train", "Not there."),
        karpathy_image("e.jpg", "train"),
    )
    folder = tmp_path / "images"
    assert read_split(format="karpathy", root=tmp_path, split="train") == Split(
        [
            CaptionedImage(folder / "a.jpg", ("A dog.", "Dog!"), 0),
            CaptionedImage(folder / "c.jpg", ("A cat.",), 2),
        ],
        [folder / "d.jpg", folder / "e.jpg"],
    )
    references = CaptionedData(DataFiles("karpathy", tmp_path)).references("train")
    assert [image.image_id for image in references] == [0, 2, 3], "those not there too"


def test_karpathy_coco_joins_splits_in_file_order_and_has_cocoids_or_positions(
    tmp_path: Path,
) -> None:
    touch(tmp_path, "val2014/a.jpg", "train2014/b.jpg", "val2014/c.jpg", "val2014/d.jpg")
    images = [
        karpathy_image("a.jpg", "restval", "A.", filepath="val2014", cocoid=70),
        karpathy_image("b.jpg", "train", "B.", filepath="train2014", cocoid=30),
        karpathy_image("c.jpg", "test", "C.", filepath="val2014", cocoid=50),
        karpathy_image("d.jpg", "restval", "D.", filepath="val2014", cocoid=10),
    ]
    write_karpathy(tmp_path, *images)
    split = read_split(format="karpathy", root=tmp_path, split="train+restval")
    assert (names(split), ids(split)) == (["a.jpg", "b.jpg", "d.jpg"], [70, 30, 10])
    del images[0]["cocoid"]
    write_karpathy(tmp_path, *images)
    assert ids(read_split(format="karpathy", root=tmp_path, split="train+restval")) == [0, 1, 3]


def coco_name(number: int, split: str = "") -> str:
    return (f"COCO_{split}_" if split.endswith("2014") else "") + f"{number:012d}.jpg"


def write_coco(root: Path, split: str, captions: dict[int, list[str]], *absent: int) -> Path:
    """Write the captions of images by their ids, and the images that are not absent."""
    touch(root / split, *(coco_name(n, split) for n in captions if n not in absent))
    path = root / "annotations" / f"captions_{split}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "images": [{"id": n, "file_name": coco_name(n, split)} for n in captions],
        "annotations": [
            {"id": 100 * n + number, "image_id": n, "caption": text}
            for n, texts in captions.items()
            for number, text in enumerate(texts)
        ],
        "categories": [{"id": 1, "name": "person"}],
    }
    path.write_text(json.dumps(content))
    return path


def test_coco_reads_its_own_ids_and_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = {9: ["A dog.", "Dog \n barks."], 4: ["A cat."], 5: [], 6: ["  "]}
    write_coco(tmp_path, "train2017", texts)
    write_coco(tmp_path, "val2017", {2: ["A bird."], 1: ["No."]}, 1)
    path = {n: tmp_path / "train2017" / coco_name(n) for n in texts}
    assert read_split(format="coco", root=tmp_path, split="train2017") == Split(
        [
            CaptionedImage(path[9], ("A dog.", "Dog barks."), 9),
            CaptionedImage(path[4], ("A cat.",), 4),
        ],
        [],
        [CaptionedImage(path[n], (), n) for n in (5, 6)],
        [(path[6], "")],
    )
    both = read_split(format="coco", root=tmp_path, split="val2017+train2017+val2017")
    assert ids(both) == [9, 4, 2]
    assert both.missing == [tmp_path / "val2017" / coco_name(1)]
    file = tmp_path / "annotations" / "captions_val2017.json"
    file.write_text(file.read_text().replace('"id": 2,', '"id": 2.0,'))  # as pandas writes it
    (bird,) = read_split(format="coco", root=tmp_path, split="val2017").images
    assert (bird.image_id, bird.captions) == (2, ("A bird.",))
    assert capfd.readouterr() == ("", "")


def test_coco_s_test_split_has_photos_and_no_captions(tmp_path: Path) -> None:
    path = write_coco(tmp_path, "test2017", {3: []})
    path.rename(path.with_name("image_info_test2017.json"))
    split = read_split(format="coco", root=tmp_path, split="test2017")
    assert split == Split([], [], [CaptionedImage(tmp_path / "test2017" / coco_name(3), (), 3)])


@pytest.fixture
def split_lists(tmp_path: Path) -> Path:
    folder = tmp_path / "lists"
    folder.mkdir()
    for split, numbers in {"train": [1], "restval": [3], "val": [4], "test": [5, 2]}.items():
        year = "train2014" if split == "train" else "val2014"
        text = "".join(f"{coco_name(number, year)}\n" for number in numbers)
        (folder / f"coco_{split}.txt").write_text(text)
    return folder


def test_coco_lists_select_by_name_over_all_captions_of_2014(
    tmp_path: Path, split_lists: Path
) -> None:
    root = tmp_path / "coco"
    write_coco(root, "train2014", {1: ["One."]})
    write_coco(root, "val2014", {number: [f"{number}."] for number in (2, 3, 4, 5)})
    (root / "annotations" / "captions_val2014_results.json").write_text("[]")  # not captions
    data = {"format": "coco", "root": root, "coco_splits": split_lists}
    found = {name: ids(read_split(split=name, **data)) for name in ("train", "val", "test")}
    assert found == {"train": [1], "val": [4], "test": [5, 2]}
    first, second = read_split(split="train+restval", **data).images
    assert first.image_id == 1
    assert second == CaptionedImage(root / "val2014" / coco_name(3, "val2014"), ("3.",), 3)
    message = sentence(split="x", **data)
    assert "has no split 'x'; the splits there are: restval, test, train, val" in message
    message = sentence(split="val", **data | {"coco_splits": tmp_path / "nowhere"})
    assert f"there is no list coco_train.txt, coco_val.txt or such in {tmp_path}" in message


def test_coco_lists_find_images_of_the_2017_layout_by_number(
    tmp_path: Path, split_lists: Path
) -> None:
    write_coco(tmp_path, "train2017", {number: [f"{number}."] for number in (1, 2, 3)})
    test = read_split(format="coco", root=tmp_path, split="test", coco_splits=split_lists)
    assert names(test) == [coco_name(2)]
    assert test.missing == [tmp_path / "val2014" / coco_name(5, "val2014")], "in no captions file"


COCO_IMAGE = {"id": 1, "file_name": "a.jpg"}
COCO_CAPTION = {"id": 1, "image_id": 1, "caption": "A dog."}


@pytest.mark.parametrize(
    "content",
    [
        DEEP,
        {"images": []},
        {"images": [COCO_IMAGE, {"id": 1, "file_name": "b.jpg"}], "annotations": [COCO_CAPTION]},
    ],
    ids=lambda content: str(content)[:40],
)
def test_damaged_coco_annotations_are_one_sentence_with_the_file(
    tmp_path: Path, content: object
) -> None:
    path = write_coco(tmp_path, "train", {})
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    touch(tmp_path / "train", "b.jpg")
    assert str(tmp_path) in sentence(format="coco", root=tmp_path, split="train")


def test_a_csv_table_gathers_captions_and_splits(tmp_path: Path) -> None:
    touch(tmp_path, "sub/a.jpg", "b.jpg", "c.jpg")
    (tmp_path / "captions.csv").write_bytes(
        b"\xef\xbb\xbfsplit, Caption ,image,extra\r\n"
        b'train,"A dog, barking ""loudly""",sub/a.jpg,x\r\n'
        b"val,A bird,b.jpg,\r\n"
        b"\r\n,,,\r\n"
        b'train,"Two\nlines",./sub/a.jpg,\r\n'
        b"train,Gone,gone.jpg,\r\n"
        b"train,Un caf\xc3\xa9,c.jpg,\r\n"
    )
    images = [
        CaptionedImage(tmp_path / "sub/a.jpg", ('A dog, barking "loudly"', "Two lines"), 0),
        CaptionedImage(tmp_path / "c.jpg", ("Un café",), 3),
    ]
    for root in (tmp_path, tmp_path / "captions.csv"):
        train = read_split(format="table", root=root, split="train")
        assert train == Split(images, [tmp_path / "gone.jpg"])
    assert ids(read_split(format="table", root=tmp_path, split="val+train")) == [0, 1, 3]
    message = sentence(format="table", root=tmp_path, split="test")
    assert " has no split 'test'; the splits there are: train, val" in message
    (tmp_path / "captions.csv").write_text("image,caption\n")
    assert "is empty" in sentence(root=tmp_path / "captions.csv")


def test_a_jsonl_table_takes_a_caption_or_a_list(tmp_path: Path) -> None:
    touch(tmp_path, "b.jpg", "outside/c.jpg")
    outside = tmp_path / "outside" / "c.jpg"
    rows = [
        {"image": "b.jpg", "caption": ["A bird.", "Bird!"]},
        {"image": str(outside), "caption": "Outside."},
        {"image": "b.jpg", "caption": "Third.", "split": None},
    ]
    (tmp_path / "captions.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    assert read_split(format="table", root=tmp_path, split="anything").images == [
        CaptionedImage(tmp_path / "b.jpg", ("A bird.", "Bird!", "Third."), 0),
        CaptionedImage(outside, ("Outside.",), 1),
    ]


CSV, JSONL = "image,caption\n", '{"image": "a.jpg", "caption": "A"}\n'


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("image,caption,a\na.jpg,A dog, barking, loudly\n", 2, "4 cells under a heading of 3"),
        (CSV + ",A dog\n", 2, "the image is empty"),
        ("image,caption,split\na.jpg,A,train\na.jpg,A,\n", 3, "the split is empty"),
        (CSV + "a.jpg,A caf\udce9\n", 2, "not UTF-8"),
        (JSONL + "{", 2, "not one JSON object"),
        (JSONL + "\n[1]", 3, "expected {"),
        (JSONL + '{"image": "a.jpg", "caption": ["A", 3]}', 2, "expected a text or a list"),
    ],
)
def test_a_malformed_line_of_a_table_is_named(
    tmp_path: Path, text: str, line: int, complaint: str
) -> None:
    touch(tmp_path, "a.jpg")
    path = tmp_path / ("captions.jsonl" if text.startswith("{") else "captions.csv")
    path.write_bytes(text.encode(errors="surrogateescape"))
    message = sentence(format="table", root=tmp_path)
    assert f"{path}, line {line}: " in message
    assert complaint in message


def test_a_table_has_its_own_ids_where_it_names_them_all(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "b.jpg")
    for second, expected in ((" x7", [12, "x7"]), ("12", [0, 1]), ("", [0, 1])):
        text = f"image_id,file_name,caption\n12,a.jpg,A dog\n{second},b.jpg,A cat\n"
        (tmp_path / "t.csv").write_text(text)
        assert ids(read_split(root=tmp_path, split="all")) == expected
    rows = [{"image_id": n, "file_name": f"{n}.jpg", "caption": "A dog"} for n in (["x"], 1.0)]
    (tmp_path / "t.csv").unlink()
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    touch(tmp_path, "['x'].jpg", "1.0.jpg")
    assert ids(read_split(root=tmp_path, split="all")) == [0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "image_path|title\na.jpg|A dog, a cat\n",
        "Filename;Description\r\na.jpg;A dog, a cat\r\n",
        "a.jpg\tA dog, a cat\n",
        "file,caption\na.jpg,A dog, a cat\n",
        ',img,raw\n0,a.jpg,"[""A dog, a cat""]"\n',
        "image_id\tsplit\ttext\na\t\tA dog, a cat\n",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_tables_are_read_as_other_programs_write_them(
    tmp_path: Path, text: str, encoding: str
) -> None:
    touch(tmp_path, "a.jpg")
    (tmp_path / "t.txt").write_bytes(text.encode(encoding))
    (image,) = read_split(root=tmp_path, split="all").images
    assert image.captions == ("A dog, a cat",)


def test_captions_that_stand_for_none_are_left_out_and_counted(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{n}.jpg" for n in range(7)))
    nothing = ["nan", "NULL", "None", "N/A", "", "?!"]
    rows = "".join(f"{n}.jpg,{text}\n" for n, text in enumerate([*nothing, "a dog"]))
    (tmp_path / "t.csv").write_text("image,caption\n" + rows)
    split = read_split(root=tmp_path, split="all")
    assert names(split) == ["6.jpg"]
    assert [text for _, text in split.wordless] == nothing
    assert len(split.uncaptioned) == 6


def test_the_real_coco_is_read_by_folder_and_by_the_papers_lists(
    shared_data: Path, tmp_path: Path
) -> None:
    """The lists are cut to those of the photos that are there and every fiftieth other one."""
    root = shared_data / "coco-tiny"
    both = read_split(format="coco", root=root, split="train2017+val2017")
    assert len(both.images) == 100
    assert not both.missing
    assert all(photo.image_id == int(photo.path.stem) for photo in both.images)
    assert all(len(photo.captions) >= 5 for photo in both.images)
    found, sizes = {}, {}
    there = {f"{image_id:012d}" for image_id in ids(both)}
    for file in (shared_data / "coco-splits").iterdir():
        lines = file.read_text().splitlines(keepends=True)
        kept = [x for n, x in enumerate(lines) if n % 50 == 0 or x.strip()[-16:-4] in there]
        (tmp_path / file.name).write_text("".join(kept))
        sizes[file.stem.removeprefix("coco_")] = len(kept)
    for split in ("val", "test", "restval"):
        part = read_split(format="coco", root=root, split=split, coco_splits=tmp_path)
        assert len(part.images) + len(part.missing) == sizes[split]
        found[split] = ids(part)
    assert [len(part) for part in found.values()] == [10, 16, 74]
    assert sorted(image_id for part in found.values() for image_id in part) == sorted(ids(both))
    message = sentence(format="coco", root=root, split="train", coco_splits=tmp_path)
    assert message.startswith(f"none of the {sizes['train']} images that")
    assert "train2014/COCO_train2014_" in message
