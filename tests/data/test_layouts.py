"""Each layout of docs/data.md is recognised and read, by every command alike."""

from __future__ import annotations

import json
import shutil
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from drawn_layouts import CAPTIONS, LAYOUTS, PHOTOS, draw, flickr8k, karpathy, sentence, write
from tiny import read_split

from captioner.cli import train
from captioner.cli.check_data import check_data
from captioner.config.settings import Config, DataConfig, SourceConfig
from captioner.data.layouts import CaptionedData, DataFiles, held_out_for_validation
from captioner.data.sources import read_sources


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str, str, tuple]:
    draw_layout, format, words, splits = LAYOUTS[request.param]
    draw_layout(tmp_path / "data")
    return tmp_path / "data", format, words, splits


def test_each_layout_is_recognised_and_all_its_photos_are_found(layout, caplog) -> None:
    root, format, words, splits = layout
    data = CaptionedData(DataFiles("auto", root))
    everything = data.everything()
    assert data.format == format
    assert words in data.description()
    assert ("without its own splits" in caplog.text) == ((format, splits) == ("flickr8k", ()))
    assert len(everything.images) == PHOTOS, data.description()
    assert not everything.missing
    assert tuple(data.split_names) == splits
    captions = {text for image in everything.images for text in image.captions}
    assert all(any(text[0] in found for found in captions) for text in CAPTIONS.values())
    # the same where the layout is insisted on
    assert CaptionedData(DataFiles(format, root)).everything() == everything


@pytest.fixture(scope="module")
def configs() -> list[Config]:
    """Settings of `captioner train` and `captioner finetune`, whose data are replaced."""
    return [
        train.train_settings(["--config", "table", "--data.root", "data"])[0],
        train.finetune_settings(["data", "--output", "run"])[0],
    ]


def photos_of(config: Config) -> tuple[set[str], set[str]]:
    found = read_sources(config.data)
    (validation,) = found.validation.values()
    return {str(i.path) for i in found.training}, {str(i.path) for i in validation}


def test_every_command_reads_the_same_photos_of_a_layout(
    layout, configs: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    root, format, words, splits = layout
    of_train, of_finetune = (
        photos_of(replace(config, data=replace(config.data, root=str(root)))) for config in configs
    )
    assert capsys.readouterr().err.count(words) == 2, "what was recognised"
    training, validation = of_train
    assert len(training) >= 6
    assert len(validation) >= 2
    assert not training & validation
    assert of_finetune == of_train
    evaluated = CaptionedData(DataFiles(root=root)).split("val")
    assert {str(image.path) for image in evaluated.images} == validation
    assert check_data([str(root)]) in (0, 1)
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{root}: ")
    assert bool(shown.err) == ((format, splits) == ("flickr8k", ()))  # without its own splits


def test_photos_are_held_out_by_a_hash_of_their_names_alone() -> None:
    names = [f"{number}.jpg" for number in range(1000)]
    held_out = held_out_for_validation(names, 0.1)
    assert 70 < len(held_out) < 130
    assert {names[i] for i in held_out} == {
        name
        for part in (names[:500], names[500:])
        for name in (part[i] for i in held_out_for_validation(part, 0.1))
    }, "a photo keeps its place when others are added"
    assert held_out_for_validation([f"C:\\photos\\{name}" for name in names], 0.1) == held_out
    assert len(held_out_for_validation(names[:5], 0.1)) == 2
    assert held_out_for_validation(names, 0.05) < held_out


def test_without_splits_val_and_train_make_up_all(tmp_path: Path, capsys) -> None:
    LAYOUTS["json_map"][0](tmp_path)
    parts = {name: read_split(root=tmp_path, split=name).images for name in ("train", "val")}
    whole = read_split(root=tmp_path, split="all").images
    assert sorted(i.image_id for part in parts.values() for i in part) == list(range(PHOTOS))
    assert len(whole) == PHOTOS
    assert read_split(root=tmp_path, split="train", val_share=0).images == whole
    for split, warned in (("val", False), ("Validation", False), ("test", True)):
        CaptionedData(DataFiles(root=tmp_path)).split_to_score(split)
        assert ("that a model learned from too" in capsys.readouterr().err) == warned


def test_where_val_is_missing_it_is_a_part_of_train(tmp_path: Path) -> None:
    """As in the usual imagefolder, with train/ and test/."""
    LAYOUTS["imagefolder"][0](tmp_path)
    shutil.rmtree(next(tmp_path.rglob("validation")))
    source = SourceConfig(root=str(tmp_path), train_split="train", val_split="val", name="all")
    training = read_sources(DataConfig(sources=(source,))).training
    held_out = read_split(root=tmp_path, split="val").images
    whole = read_split(root=tmp_path, split="train").images
    assert 0 < len(held_out) < len(whole)
    assert len(training) == len(whole) - len(held_out)
    assert {i.path.parent.name for i in (*whole, *held_out)} == {"train"}
    data = CaptionedData(DataFiles(root=tmp_path), val_split="val")
    assert "(10% of train are held out" in data.description()


@pytest.mark.parametrize("layout", ["imagefolder_train_alone", "json_map"])
def test_photos_are_held_out_only_where_there_is_something_to_validate(
    tmp_path: Path, layout: str
) -> None:
    LAYOUTS[layout][0](tmp_path)
    source = SourceConfig(root=str(tmp_path), val_split=None, name="all")
    assert len(read_sources(DataConfig(sources=(source,))).training) == PHOTOS
    assert 2 <= len(read_split(root=tmp_path, split="val").images) < PHOTOS


def test_a_split_is_found_by_its_other_names(tmp_path: Path) -> None:
    draw(tmp_path)
    write(
        tmp_path / "t.csv", "image,caption,split\n00.jpg,a,Training\n01.jpg,b,valid\n02.jpg,c,test"
    )
    for name, count in (("train", 1), ("val", 1), ("dev", 1), ("validation", 1), ("val+test", 2)):
        assert len(read_split(root=tmp_path, split=name).images) == count
    assert "has no split 'x'; the splits there are: test, train, val" in sentence(
        root=tmp_path, split="x"
    )


def test_several_data_sets_are_named_with_the_option_that_decides(tmp_path: Path) -> None:
    flickr8k(tmp_path)
    karpathy(tmp_path, "Flicker8k_Dataset")
    message = sentence(root=tmp_path)
    assert "Flickr8k.token.txt" in message
    assert "--format flickr8k or --format karpathy" in message
    assert len(read_split(root=tmp_path, format="karpathy", split="train").images) == 8
    assert len(read_split(root=tmp_path, file="dataset_flickr8k.json", split="train").images) == 8
    draw(tmp_path / "tables")
    write(tmp_path / "tables" / "one.csv", "image,caption\n00.jpg,one\n")
    write(tmp_path / "tables" / "two.jsonl", '{"image": "01.jpg", "caption": "two"}\n')
    tables = {"root": tmp_path / "tables"}
    assert "one.csv, two.jsonl; choose one with --file" in sentence(**tables)
    (image,) = read_split(file="two.jsonl", split="all", **tables).images
    assert image.captions == ("two",)


def test_json_files_without_captions_are_no_data_set(tmp_path: Path) -> None:
    draw(tmp_path)
    for n in range(PHOTOS):
        write(tmp_path / f"{n:02d}.json", '{"id": 1, "tags": ["shape"]}')
    write(tmp_path / "captions.csv", "image,caption\n00.jpg,a shape\n")
    assert CaptionedData(DataFiles(root=tmp_path)).format == "table"
    (tmp_path / "lost.json").symlink_to("of a disk that is not there.json")
    assert "lost.json cannot be read (No such file or directory)" in sentence(root=tmp_path)


def test_of_two_years_of_coco_one_is_asked_for(tmp_path: Path) -> None:
    LAYOUTS["coco_2017"][0](tmp_path)
    LAYOUTS["coco_2014"][0](tmp_path)
    message = sentence(root=tmp_path)
    assert "has no split 'train'; the splits there are: train2014, train2017" in message
    assert "--split" in message
    assert len(read_split(root=tmp_path, split="train2017").images) == 8


def test_what_lies_there_is_named_where_nothing_is_recognised(tmp_path: Path) -> None:
    draw(tmp_path / "photos")
    write(tmp_path / "notes.md", "?")
    message = sentence(root=tmp_path)
    assert "12 photos" in message
    assert "notes.md" in message
    assert "docs/data.md" in message
    write(tmp_path / "list.csv", "bild,satz\n00.jpg,ein Hund\n")
    message = sentence(root=tmp_path)
    assert "list.csv has the columns bild, satz" in message
    assert "--image-column" in message
    assert "satz and not Titel (" in sentence(root=tmp_path, caption_column="Titel")
    assert "columns" not in sentence(root=tmp_path, format="coco")
    columns = {"image_column": "bild", "caption_column": "satz"}
    assert len(read_split(root=tmp_path, split="all", **columns).images) == 1
    write(tmp_path / "captions.json", '{"images": [{"id": 1')
    assert f"{tmp_path}/captions.json is not readable as JSON (Exp" in sentence(root=tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "a.jpg",
        "photos/a.jpg",
        "photos\\a.jpg",
        "C:\\Users\\me\\photos\\a.jpg",
        "PHOTOS/A.JPG",
        "a",
        "a.png",
        "/home/other/a.jpg",
        "https://example.org/x/a.jpg?size=2",
    ],
)
def test_a_photo_is_found_by_a_name_that_does_not_lead_to_it(tmp_path: Path, name: str) -> None:
    for photo in ("a.jpg", "b.jpg"):
        write(tmp_path / "photos" / photo, "")
    write(tmp_path / "t.csv", f"image,caption\n{name},a dog\n")
    data = CaptionedData(DataFiles(root=tmp_path / "t.csv"))
    assert [i.path for i in data.everything().images] == [tmp_path / "photos" / "a.jpg"]
    assert name == "photos/a.jpg" or "1 photos in photos/" in data.description()


def test_tables_are_read_where_a_few_texts_are_no_captions(tmp_path: Path) -> None:
    draw(tmp_path / "images")
    for split, number in (("train", 1), ("test", 2)):
        write(tmp_path / f"{split}.json", json.dumps([{"image": f"0{number}.jpg", "caption": "a"}]))
    write(tmp_path / "images.csv", "")
    for number in (3, 4):
        write(tmp_path / "images" / f"0{number}.txt", "0 0.5 0.5 1 1")
    data = CaptionedData(DataFiles(root=tmp_path))
    assert (data.format, set(data.split_names)) == ("table", {"train", "test"})


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_are_the_same_in_either_form(tmp_path: Path, form: Literal["NFC", "NFD"]) -> None:
    write(tmp_path / unicodedata.normalize(form, "für.jpg"), "")
    write(tmp_path / "t.csv", f"image,caption\n{unicodedata.normalize('NFC', 'für.jpg')},a dog\n")
    assert len(read_split(root=tmp_path, split="all").images) == 1


def test_a_file_is_not_taken_for_two_photos_nor_one_of_two_files(tmp_path: Path) -> None:
    for name in ("here/a.jpg", "b/x.jpg", "c/x.jpg", "c/z.jpg"):
        write(tmp_path / name, "")
    table = "image,caption\nhere/a.jpg,one\ngone/a.jpg,two\nd/x.jpg,three\nc/x.jpg,four\n"
    write(tmp_path / "t.csv", f"{table}here/z.jpg,five\n")
    split = read_split(root=tmp_path, split="all")
    assert [i.path.relative_to(tmp_path).as_posix() for i in split.images] == [
        "here/a.jpg",
        "b/x.jpg",  # the only one left
        "c/x.jpg",
    ]
    assert split.missing == [tmp_path / "gone/a.jpg", tmp_path / "here/z.jpg"]
    write(tmp_path / "t.csv", "image,caption\nx.jpg,which?\nhere/a.jpg,one\n")
    assert read_split(root=tmp_path, split="all").missing == [tmp_path / "x.jpg"]


def test_where_no_photo_is_found_the_message_says_what_lies_there(tmp_path: Path) -> None:
    write(tmp_path / "t.csv", "image,caption\na.jpg,a dog\n")
    message = sentence(root=tmp_path)
    assert message.startswith(f"none of the 1 images that {tmp_path} names is on disk")
    assert f"expected at {tmp_path}/a.jpg; there are no photos below {tmp_path}" in message
    draw(tmp_path / "photos")
    assert "there are 12 photos below" in sentence(root=tmp_path)
    assert "such as photos/00.jpg" in sentence(root=tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "Image Name,caption_1,caption_2\na.jpg,one dog,two dogs\n"),
        ("t.csv", "image,caption,caption\na.jpg,one dog,two dogs\n"),
        ("t.csv", ",image,captions\n0,a.jpg,\"['one dog', 'two dogs']\"\n"),
        ("t.csv", 'image,captions\na.jpg,"[\'one dog\', ""two dogs aren\'t""]"\n'),
        ("t.csv", "image,captions\na.jpg,\"['one dog sits.'\n 'two dogs']\"\n"),  # NumPy's
        ("t.csv", 'image,caption\na.jpg,"one" dog\na.jpg,two dogs\n'),
        ("t.csv", "sep=;\r\nimage;alt-text\r\na.jpg;one dog\r\na.jpg;two dogs\r\n"),
        ("t.json", '{"train": [{"image": "a.jpg", "caption": ["one dog", "two dogs"]}]}'),
        (
            "my.json",
            '{"images": [{"filename": "a.jpg", "split": "train", "sentences": '
            '[{"tokens": ["one", "dog"]}, {"raw": "two dogs"}]}]}',
        ),
        ("t.txt", "a.jpg one dog\na.jpg two dogs\n"),
        ("t.csv", "a,one dog of four words\na,two dogs\n"),
        (
            "t.json",
            '[{"id": 1, "image": "a.jpg", "conversations": [{"from": "human", "value": "<image>"}, '
            '{"from": "gpt", "value": "one dog"}, {"from": "gpt", "value": "two dogs"}]}]',
        ),
        ("images/a.json", '{"caption": ["one dog", "two dogs"], "width": 3}'),
        ("images/a.jpg.txt", "one dog\ntwo dogs\n"),
        ("captions/a.txt", "one dog\ntwo dogs\n"),
    ],
)
def test_each_form_of_a_table_or_text_gives_all_captions(
    tmp_path: Path, name: str, text: str
) -> None:
    write(tmp_path / "images" / "a.jpg", "")
    write(tmp_path / name, text)
    (image,) = CaptionedData(DataFiles(root=tmp_path)).everything().images
    assert [" ".join(text.split()[:2]) for text in image.captions] == ["one dog", "two dogs"]


@pytest.mark.parametrize(
    ("layout", "root"),
    [
        ("flickr8k_kaggle", "Images"),
        ("flickr8k_archives", "Flickr8k_text"),
        ("flickr8k_archives", "Flickr8k_Dataset/Flicker8k_Dataset"),
        ("coco_2017", "annotations"),
        ("coco_2017", "train2017"),
    ],
)
def test_a_part_of_a_data_set_given_as_its_root_leads_to_all_of_it(
    tmp_path: Path, layout: str, root: str
) -> None:
    LAYOUTS[layout][0](tmp_path / "data")
    data = CaptionedData(DataFiles(root=tmp_path / "data" / root))
    assert len(data.everything().images) == PHOTOS
