"""Readers of captioned photos: each format from small files, each error sentence, the real data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from drawn_layouts import sentence

from captioner.data.captioned import CaptionedImage, Split
from captioner.data.layouts import CaptionedData, DataFiles, read_split

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


# ---------------------------------------------------------------------------------------- Flickr8k


@pytest.fixture
def flickr8k(tmp_path: Path) -> Path:
    touch(tmp_path / "images", "a.jpg", "b.jpg", "c.jpg", "unused.jpg")
    (tmp_path / "Flickr8k.token.txt").write_text(
        "c.jpg#0\tA cat .\nc.jpg#1\tThe  cat sits .\na.jpg#0\tA dog .\n"
        "odd.jpg.1#0\tin no split\nb.jpg#0\tA bird .\n"
    )
    (tmp_path / "Flickr_8k.trainImages.txt").write_text("b.jpg\nc.jpg\n")
    (tmp_path / "Flickr_8k.devImages.txt").write_text("a.jpg\n")
    return tmp_path


def test_flickr8k_gives_captions_ids_and_the_order_of_the_split_file(flickr8k: Path) -> None:
    split = read_split(format="flickr8k", root=flickr8k, split="train")
    assert split == Split(
        [
            CaptionedImage(flickr8k / "images" / "b.jpg", ("A bird .",), 3),
            CaptionedImage(flickr8k / "images" / "c.jpg", ("A cat .", "The cat sits ."), 0),
        ],
        [],
    )


def test_flickr8k_takes_val_for_dev_joins_splits_and_keeps_ids_without_a_photo(
    flickr8k: Path,
) -> None:
    assert names(read_split(format="flickr8k", root=flickr8k, split="dev")) == ["a.jpg"]
    joined = read_split(format="flickr8k", root=str(flickr8k), split="train + val+dev")
    assert (names(joined), ids(joined)) == (["b.jpg", "c.jpg", "a.jpg"], [3, 0, 1])
    (flickr8k / "images" / "b.jpg").unlink()
    split = read_split(format="flickr8k", root=flickr8k, split="train+dev")
    assert (split.missing, ids(split)) == ([flickr8k / "images" / "b.jpg"], [0, 1])
    for nameless in ("", "train+"):
        assert "is no split name" in sentence(format="flickr8k", root=flickr8k, split=nameless)


def test_flickr8k_reads_crlf_byte_order_mark_and_blank_lines(flickr8k: Path) -> None:
    plain = read_split(format="flickr8k", root=flickr8k, split="train")
    for path in flickr8k.glob("*.txt"):
        path.write_bytes(
            b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n  \r\n"
        )
    assert read_split(format="flickr8k", root=flickr8k, split="train") == plain


def test_a_split_name_without_captions_is_named_with_its_line(flickr8k: Path) -> None:
    (flickr8k / "Flickr_8k.trainImages.txt").write_text("b.jpg\n\nnobody.jpg\n")
    message = sentence(format="flickr8k", root=flickr8k, split="train")
    assert f"{flickr8k / 'Flickr_8k.trainImages.txt'}, line 3: 'nobody.jpg' has no cap" in message


# ---------------------------------------------------------------------------------------- Karpathy


def karpathy_image(name: str, split: str, *captions: str, **more: object) -> dict[str, object]:
    sentences = [{"raw": caption, "tokens": ["not", "these"]} for caption in captions]
    return {"filename": name, "split": split, "sentences": sentences, **more}


def write_karpathy(folder: Path, *images: object, name: str = "dataset_flickr8k.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"images": images, "dataset": "flickr8k"}))
    return path


def test_karpathy_reads_raw_captions_and_positions_as_ids(tmp_path: Path) -> None:
    touch(tmp_path / "images", "a.jpg", "b.jpg", "c.jpg")
    write_karpathy(
        tmp_path,
        karpathy_image("a.jpg", "train", "A dog.", "Dog!"),
        karpathy_image("b.jpg", "val", "A café.\n"),
        karpathy_image("c.jpg", "train", "A cat."),
        karpathy_image("d.jpg", "train", "Not there."),
        karpathy_image("e.jpg", "train"),
    )
    split = read_split(format="karpathy", root=tmp_path, split="train")
    assert split == Split(
        [
            CaptionedImage(tmp_path / "images" / "a.jpg", ("A dog.", "Dog!"), 0),
            CaptionedImage(tmp_path / "images" / "c.jpg", ("A cat.",), 2),
        ],
        [tmp_path / "images" / "d.jpg", tmp_path / "images" / "e.jpg"],
    )
    texts = CaptionedData(DataFiles("karpathy", tmp_path)).captions("train")
    assert texts == ["A dog.", "Dog!", "A cat.", "Not there."], "those of photos not there too"
    (val,) = read_split(format="karpathy", root=tmp_path, split="val").images
    assert val.captions == ("A café.",)


def test_karpathy_coco_joins_splits_in_file_order_and_has_cocoids_or_positions(
    tmp_path: Path,
) -> None:
    touch(tmp_path, "val2014/a.jpg", "train2014/b.jpg", "val2014/c.jpg", "val2014/d.jpg")
    write_karpathy(
        tmp_path,
        karpathy_image("a.jpg", "restval", "A.", filepath="val2014", cocoid=70),
        karpathy_image("b.jpg", "train", "B.", filepath="train2014", cocoid=30),
        karpathy_image("c.jpg", "test", "C.", filepath="val2014", cocoid=50),
        karpathy_image("d.jpg", "restval", "D.", filepath="val2014", cocoid=10),
    )
    split = read_split(format="karpathy", root=tmp_path, split="train+restval")
    assert names(split) == ["a.jpg", "b.jpg", "d.jpg"]
    assert ids(split) == [70, 30, 10]
    write_karpathy(tmp_path, karpathy_image("a.jpg", "train", "A.", filepath="val2014", cocoid=7),
                   karpathy_image("b.jpg", "train", "B.", filepath="train2014"))  # fmt: skip
    assert ids(read_split(format="karpathy", root=tmp_path, split="train")) == [0, 1]


def test_coco_s_test_split_has_photos_and_no_captions(tmp_path: Path) -> None:
    write_coco(tmp_path, "test2017", {coco_name(3): (3, [])})
    folder = tmp_path / "annotations"
    (folder / "captions_test2017.json").rename(folder / "image_info_test2017.json")
    touch(tmp_path / "test2017", coco_name(3))
    split = read_split(format="coco", root=tmp_path, split="test2017")
    assert split == Split([], [], [CaptionedImage(tmp_path / "test2017" / coco_name(3), (), 3)])


def test_the_captions_file_is_chosen_by_name_when_there_are_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "a.jpg")
    write_karpathy(tmp_path, karpathy_image("a.jpg", "train", "One."), name="dataset_one.json")
    two = write_karpathy(tmp_path, karpathy_image("a.jpg", "train", "Two."), name="dataset_2.json")
    message = sentence(format="karpathy", root=tmp_path, split="train")
    assert "holds dataset_2.json, dataset_one.json; choose one with --file" in message
    monkeypatch.chdir(tmp_path.parent)
    for file in ("dataset_2.json", two, Path(tmp_path.name, "dataset_2.json")):
        split = read_split(format="karpathy", root=tmp_path, split="train", file=file)
        assert split.images[0].captions == ("Two.",)
    message = sentence(format="karpathy", root=tmp_path, split="train", file="three.json")
    assert f"the captions file {tmp_path / 'three.json'} does not exist" in message


@pytest.mark.parametrize("image", [{"filename": "a.jpg", "split": "train"}, "a.jpg"])
def test_a_malformed_karpathy_image_is_named_by_its_number(tmp_path: Path, image: object) -> None:
    path = write_karpathy(tmp_path, karpathy_image("b.jpg", "train", "B."), image)
    message = sentence(format="karpathy", root=tmp_path, split="train")
    assert f"{path}, image number 2: expected filename, split and sentences" in message


# -------------------------------------------------------------------------------------------- COCO


def write_coco(root: Path, split: str, images: dict[str, tuple[int, list[str]]]) -> Path:
    path = root / "annotations" / f"captions_{split}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    annotations = [
        {"id": 100 * image_id + number, "image_id": image_id, "caption": caption}
        for image_id, captions in images.values()
        for number, caption in enumerate(captions)
    ]
    path.write_text(
        json.dumps(
            {
                "images": [{"id": key, "file_name": name} for name, (key, _) in images.items()],
                "annotations": annotations,
                "categories": [{"id": 1, "name": "person"}],
            }
        )
    )
    return path


def coco_name(number: int, year_folder: str = "") -> str:
    return (f"COCO_{year_folder}_" if year_folder else "") + f"{number:012d}.jpg"


def test_coco_reads_its_own_ids_and_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_coco(
        tmp_path,
        "train2017",
        {
            coco_name(9): (9, ["A dog.", "Dog \n barks."]),
            coco_name(4): (4, ["A cat."]),
            coco_name(5): (5, []),
            coco_name(6): (6, ["  "]),
        },
    )
    write_coco(tmp_path, "val2017", {coco_name(2): (2, ["A bird."]), coco_name(1): (1, ["No."])})
    touch(tmp_path / "train2017", coco_name(9), coco_name(4), coco_name(5), coco_name(6))
    touch(tmp_path / "val2017", coco_name(2))
    train = read_split(format="coco", root=tmp_path, split="train2017")
    assert train == Split(
        [
            CaptionedImage(tmp_path / "train2017" / coco_name(9), ("A dog.", "Dog barks."), 9),
            CaptionedImage(tmp_path / "train2017" / coco_name(4), ("A cat.",), 4),
        ],
        [],
        [CaptionedImage(tmp_path / "train2017" / coco_name(n), (), n) for n in (5, 6)],
        [(tmp_path / "train2017" / coco_name(6), "")],
    )
    both = read_split(format="coco", root=tmp_path, split="val2017+train2017+val2017")
    assert ids(both) == [9, 4, 2]
    assert both.missing == [tmp_path / "val2017" / coco_name(1)]
    assert capfd.readouterr() == ("", "")


def test_two_coco_splits_that_number_images_alike_are_not_joined(tmp_path: Path) -> None:
    write_coco(tmp_path, "old", {coco_name(1): (1, ["A dog."])})
    write_coco(tmp_path, "new", {coco_name(2): (1, ["A cat."])})
    message = sentence(format="coco", root=tmp_path, split="old+new")
    assert f"the image id 1 is that of new/{coco_name(2)} and of old/{coco_name(1)}" in message


@pytest.fixture
def split_lists(tmp_path: Path) -> Path:
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "coco_train.txt").write_text(coco_name(1, "train2014") + "\n")
    (folder / "coco_restval.txt").write_text(coco_name(3, "val2014") + "\n")
    (folder / "coco_val.txt").write_text(coco_name(4, "val2014") + "\n")
    (folder / "coco_test.txt").write_text(f"{coco_name(5, 'val2014')}\n{coco_name(2, 'val2014')}\n")
    return folder


def test_coco_lists_select_by_name_over_all_captions_of_2014(
    tmp_path: Path, split_lists: Path
) -> None:
    root = tmp_path / "coco"
    train = {coco_name(1, "train2014"): (1, ["One."])}
    val = {coco_name(number, "val2014"): (number, [f"{number}."]) for number in (2, 3, 4, 5)}
    write_coco(root, "train2014", train)
    write_coco(root, "val2014", val)
    touch(root / "train2014", *train)
    touch(root / "val2014", *val)
    (root / "annotations" / "captions_val2014_results.json").write_text("[]")  # not captions

    def read(split: str) -> Split:
        return read_split(format="coco", root=root, split=split, coco_splits=split_lists)

    assert [ids(read(name)) for name in ("train", "val", "test")] == [[1], [4], [5, 2]]
    first, second = read("train+restval").images
    assert first.image_id == 1
    assert second == CaptionedImage(root / "val2014" / coco_name(3, "val2014"), ("3.",), 3)
    assert "has no split 'x'; the splits there are: restval, test, train, val" in sentence(
        format="coco", root=root, split="x", coco_splits=split_lists
    )
    message = sentence(format="coco", root=root, split="val", coco_splits=tmp_path / "nowhere")
    assert f"there is no list coco_train.txt, coco_val.txt or such in {tmp_path}" in message


def test_coco_lists_find_images_of_the_2017_layout_by_number(
    tmp_path: Path, split_lists: Path
) -> None:
    root = tmp_path / "coco"
    images = {coco_name(number): (number, [f"{number}."]) for number in (1, 2, 3)}
    write_coco(root, "train2017", images)
    touch(root / "train2017", *images)
    test = read_split(format="coco", root=root, split="test", coco_splits=split_lists)
    assert names(test) == [coco_name(2)]
    # In no captions file: named where it would lie.
    assert test.missing == [root / "val2014" / coco_name(5, "val2014")]


# ------------------------------------------------------------------------------------------- Table


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
    train = read_split(format="table", root=tmp_path, split="train")
    assert train == Split(
        [
            CaptionedImage(tmp_path / "sub/a.jpg", ('A dog, barking "loudly"', "Two lines"), 0),
            CaptionedImage(tmp_path / "c.jpg", ("Un café",), 3),
        ],
        [tmp_path / "gone.jpg"],
    )
    by_file = read_split(format="table", root=tmp_path / "captions.csv", split="train")
    assert by_file == train
    assert ids(read_split(format="table", root=tmp_path, split="val+train")) == [0, 1, 3]
    message = sentence(format="table", root=tmp_path, split="test")
    assert " has no split 'test'; the splits there are: train, val" in message


def test_a_jsonl_table_takes_a_caption_or_a_list(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "b.jpg")
    outside = tmp_path.parent / f"{tmp_path.name}-outside.jpg"
    outside.touch()
    rows = [
        {"image": "b.jpg", "caption": ["A bird.", "Bird!"]},
        {"image": str(outside), "caption": "Outside."},
        {"image": "b.jpg", "caption": "Third.", "split": None},
    ]
    (tmp_path / "captions.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    for split in ("train", "anything", "train+val"):
        assert read_split(format="table", root=tmp_path, split=split) == Split(
            [
                CaptionedImage(tmp_path / "b.jpg", ("A bird.", "Bird!", "Third."), 0),
                CaptionedImage(outside, ("Outside.",), 1),
            ],
            [],
        )


CSV, JSONL = "image,caption\n", '{"image": "a.jpg", "caption": "A"}\n'


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("image,caption,a\na.jpg,A dog, barking, loudly\n", 2, "4 cells under a heading of 3"),
        (CSV + ",A dog\n", 2, "the image is empty"),
        (CSV + 'a.jpg,"A\ndog"\na.jpg,"no end\na.jpg,x\n', 4, "not readable as CSV"),
        ("image,caption,split\na.jpg,A,train\na.jpg,A,\n", 3, "the split is empty"),
        (CSV + "a.jpg,A caf\udce9\n", 2, "not UTF-8"),
        (JSONL + "{", 2, "not one JSON object"),
        (JSONL + "\n[1]", 3, "expected {"),
        (JSONL + '{"caption": "A"}', 2, "it has no image"),
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


def test_names_that_begin_like_a_formula_are_read_without_their_guard(tmp_path: Path) -> None:
    touch(tmp_path, "@user.jpg", "+1.jpg", "'=a.jpg", "'b.jpg")
    (tmp_path / "t.csv").write_text(
        "image,caption\n'@user.jpg,one\n'+1.jpg,two\n'=a.jpg,three\n'b.jpg,four\n"
    )
    split = read_split(root=tmp_path, split="all")
    assert names(split) == ["@user.jpg", "+1.jpg", "'=a.jpg", "'b.jpg"]


def test_captions_that_stand_for_none_are_left_out_and_counted(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{n}.jpg" for n in range(7)))
    nothing = ["nan", "NULL", "None", "N/A", "", "?!"]
    rows = "".join(f"{n}.jpg,{text}\n" for n, text in enumerate([*nothing, "a dog"]))
    (tmp_path / "t.csv").write_text("image,caption\n" + rows)
    split = read_split(root=tmp_path, split="all")
    assert names(split) == ["6.jpg"]
    assert [text for _, text in split.wordless] == nothing
    assert len(split.uncaptioned) == 6


def test_annotations_of_no_image_and_ids_of_another_type_are_one_sentence_each(
    tmp_path: Path,
) -> None:
    path = write_coco(tmp_path, "train", {coco_name(n): (n, ["A dog."]) for n in range(1, 31)})
    touch(tmp_path / "train", *(coco_name(n) for n in range(1, 31)))
    content = json.loads(path.read_text())
    for annotation in content["annotations"]:
        annotation["image_id"] = str(annotation["image_id"])
    content["annotations"][0]["image_id"] = 1.0  # as pandas writes ids
    content["annotations"] += [{"id": n, "image_id": 99, "caption": "Gone."} for n in range(5)]
    path.write_text(json.dumps(content))
    split = read_split(format="coco", root=tmp_path, split="train")
    assert len(split.images) == 30
    strangers, types = split.left_out("train")
    assert f"{path}: 5 of 35 annotations name no image of the file" in strangers
    assert "29 of 35 annotations name images by texts such as '2'" in types


# --------------------------------------------------------------------------------------- Real data


def test_the_real_flickr8k_has_its_official_sizes(shared_data: Path) -> None:
    root = shared_data / "flickr8k"
    train = read_split(format="flickr8k", root=root, split="train")
    val = read_split(format="flickr8k", root=root, split="val")
    assert (len(train.images), len(val.images)) == (6000, 1000)
    assert not train.missing
    assert not val.missing
    assert {len(photo.captions) for photo in train.images + val.images} == {5}
    assert len(set(ids(train) + ids(val))) == 7000
    assert names(train)[0] == "2513260012_03d33305cf.jpg"
    assert train.images[0].captions[0] == "A black dog is running after a white dog in the snow ."


def test_the_real_coco_is_read_by_folder_and_by_the_papers_lists(shared_data: Path) -> None:
    root, lists = shared_data / "coco-tiny", shared_data / "coco-splits"
    both = read_split(format="coco", root=root, split="train2017+val2017")
    assert len(both.images) == 100
    assert not both.missing
    assert all(photo.image_id == int(photo.path.stem) for photo in both.images)
    assert all(len(photo.captions) >= 5 for photo in both.images)
    found = {}
    for split, size in {"val": 5000, "test": 5000, "restval": 30504}.items():
        part = read_split(format="coco", root=root, split=split, coco_splits=lists)
        assert len(part.images) + len(part.missing) == size
        found[split] = ids(part)
    assert [len(part) for part in found.values()] == [10, 16, 74]
    assert sorted(image_id for part in found.values() for image_id in part) == sorted(ids(both))
    message = sentence(format="coco", root=root, split="train", coco_splits=lists)
    assert message.startswith("none of the 82783 images that")


# ------------------------------------------------------------------------- Damaged annotations


COCO_IMAGE = {"id": 1, "file_name": "a.jpg"}
COCO_CAPTION = {"id": 1, "image_id": 1, "caption": "A dog."}


@pytest.mark.parametrize(
    "content",
    [
        DEEP,
        '{"images": [], "annotations"',
        {"images": []},
        {"images": [{**COCO_IMAGE, "id": None}], "annotations": [COCO_CAPTION]},
        {"images": [COCO_IMAGE, {"id": 1, "file_name": "b.jpg"}], "annotations": [COCO_CAPTION]},
        {"images": [{**COCO_IMAGE, "file_name": "a\0.jpg"}], "annotations": [COCO_CAPTION]},
        {"images": [COCO_IMAGE], "annotations": [{**COCO_CAPTION, "caption": 7}]},
        {"annotations": [COCO_CAPTION]},
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
