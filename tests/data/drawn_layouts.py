"""Data sets of drawn photos, each laid out as its publishers lay it out."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import tiny

from captioner.errors import DataError

PHOTOS = 12
CAPTIONS = {number: tiny.photo(number)[1] for number in range(PHOTOS)}
SPLITS = ["train"] * 8 + ["val"] * 2 + ["test"] * 2


def numbers_of(split: str) -> list[int]:
    return [number for number in range(PHOTOS) if SPLITS[number] == split]


def sentence(**data: object) -> str:
    """The message of the DataError that reading ends with."""
    return tiny.sentence(DataError, tiny.read_split, **{"split": "train", **data})


def jpeg(number: int) -> bytes:
    return tiny.encoded(tiny.photo(number)[0], "JPEG", quality=95)


def draw(folder: Path, name: str = "{:02d}.jpg", only: str = "") -> None:
    """Draw the photos of a split, or all, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(PHOTOS):
        if not only or SPLITS[number] == only:
            (folder / name.format(number)).write_bytes(jpeg(number))


def write(path: Path, text: str, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))


def pairs() -> list[tuple[int, str]]:
    return [(number, text) for number, texts in CAPTIONS.items() for text in texts]


def rows(heading: str, row: str, end: str = "\n") -> str:
    """A heading and a row for each caption; `{n}`, `{text}` and `{split}` are filled in."""
    lines = [row.format(n=n, text=text, split=SPLITS[n]) for n, text in pairs()]
    return end.join([heading, *lines] if heading else lines) + end


def flickr8k(root: Path, photos: str = "Flicker8k_Dataset", text: str = "") -> None:
    draw(root / photos)
    numbered = [
        f"{number:02d}.jpg#{index}\t{caption}"
        for number, texts in CAPTIONS.items()
        for index, caption in enumerate(texts)
    ]
    write(root / text / "Flickr8k.token.txt", "\n".join(numbered) + "\n")
    for split, ours in (("train", "train"), ("dev", "val"), ("test", "test")):
        names = [f"{n:02d}.jpg\n" for n in numbers_of(ours)]
        write(root / text / f"Flickr_8k.{split}Images.txt", "".join(names))


def flickr8k_archives(root: Path) -> None:
    flickr8k(root, "Flickr8k_Dataset/Flicker8k_Dataset", "Flickr8k_text")
    write(root / "Flickr8k_text" / "readme.txt", "If you use this corpus, please cite:\n")
    write(root / "Flickr8k_text" / "CrowdFlowerAnnotations.txt", "00.jpg\t01.jpg#2\t0\t0\t3\n")


def flickr8k_images(root: Path) -> None:
    flickr8k(root, "images")


def flickr8k_kaggle(root: Path) -> None:
    draw(root / "Images")
    write(root / "captions.txt", rows("image,caption", '{n:02d}.jpg,"{text} , so far ."'))


def flickr30k(root: Path) -> None:
    draw(root / "flickr30k-images")
    write(root / "results_20130124.token", rows("", "{n:02d}.jpg#0\t{text}"))


def flickr30k_kaggle(root: Path) -> None:
    folder = root / "flickr30k_images"
    draw(folder / "flickr30k_images")
    text = rows("image_name| comment_number| comment", "{n:02d}.jpg| 0| {text} .")
    write(folder / "results.csv", text + "11.jpg| 4   A dog runs across the grass .\n")


def coco_json(numbers: list[int], name: str) -> str:
    images = [{"id": 1 + n, "file_name": name.format(1 + n)} for n in numbers]
    annotations = [
        {"id": 10 * n + i, "image_id": 1 + n, "caption": text}
        for n in numbers
        for i, text in enumerate(CAPTIONS[n])
    ]
    return json.dumps({"info": {}, "images": images, "annotations": annotations})


def coco(root: Path, photos: str, name: str, year: str) -> None:
    for split in ("train", "val"):
        numbers = [n for n in range(PHOTOS) if (SPLITS[n] == "train") == (split == "train")]
        folder = root / photos.format(split)
        folder.mkdir(parents=True)
        for n in numbers:
            (folder / name.format(1 + n, split=split)).write_bytes(jpeg(n))
        text = coco_json(numbers, name.replace("{split}", split))
        write(root / "annotations" / f"captions_{split}{year}.json", text)
        write(root / "annotations" / f"instances_{split}{year}.json", "not read")


def coco_2017(root: Path) -> None:
    coco(root, "{}2017", "{:012d}.jpg", "2017")


def coco_2014(root: Path) -> None:
    coco(root, "images/{}2014", "COCO_{split}2014_{:012d}.jpg", "2014")


def coco_own_names(root: Path) -> None:
    coco(root, "images_{}", "{:012d}.jpg", "")
    for path in (root / "annotations").glob("captions_*"):
        path.rename(path.with_name(path.name.replace("captions_", "MINE-")))


def coco_single_file(root: Path) -> None:
    draw(root / "images", "{:03d}.jpg")
    (root / "images" / "000.jpg").rename(root / "images" / f"{PHOTOS:03d}.jpg")
    write(root / "annotations.json", coco_json(list(range(PHOTOS)), "{:03d}.jpg"))


def karpathy(root: Path, photos: str = "Images") -> None:
    draw(root / photos)
    images = [
        {
            "filename": f"{n:02d}.jpg",
            "imgid": n,
            "split": SPLITS[n],
            "sentences": [{"raw": text, "tokens": text.split()} for text in texts],
        }
        for n, texts in CAPTIONS.items()
    ]
    write(root / "dataset_flickr8k.json", json.dumps({"images": images, "dataset": "flickr8k"}))


def karpathy_coco(root: Path) -> None:
    draw(root / "train2017", "{:012d}.jpg", "train")
    draw(root / "val2017", "{:012d}.jpg", "val")
    draw(root / "val2017", "{:012d}.jpg", "test")
    images = [
        {
            "filepath": "val2014",
            "filename": f"COCO_val2014_{n:012d}.jpg",
            "cocoid": n,
            "split": SPLITS[n],
            "sentences": [{"raw": text, "sentid": 1} for text in texts],
        }
        for n, texts in CAPTIONS.items()
    ]
    write(root / "dataset_coco.json", json.dumps({"images": images, "dataset": "coco"}))


def imagefolder(root: Path) -> None:
    for split in ("train", "validation", "test"):
        ours = "val" if split == "validation" else split
        draw(root / split, only=ours)
        lines = [
            json.dumps({"file_name": f"{n:02d}.jpg", "text": text})
            for n, text in pairs()
            if SPLITS[n] == ours
        ]
        write(root / split / "metadata.jsonl", "\n".join(lines) + "\n")


def imagefolder_train_alone(root: Path) -> None:
    draw(root / "data" / "train")
    write(root / "data" / "train" / "metadata.csv", rows("file_name,text", "{n:02d}.jpg,{text}"))


def imagefolder_csv(root: Path) -> None:
    draw(root)
    write(root / "metadata.csv", rows("file_name,text", "{n:02d}.jpg,{text}"))


def blip(root: Path) -> None:
    draw(root / "images" / "val2014", "COCO_val2014_{:012d}.jpg")
    for split in ("train", "val", "test"):
        numbers = numbers_of(split)
        names = [f"val2014/COCO_val2014_{n:012d}.jpg" for n in numbers]
        entries = [
            {"image": name, "caption": CAPTIONS[n]} for name, n in zip(names, numbers, strict=True)
        ]
        write(root / f"coco_karpathy_{split}.json", json.dumps(entries))


def json_map(root: Path) -> None:
    draw(root)
    write(root / "captions.json", json.dumps({f"{n:02d}.jpg": CAPTIONS[n] for n in CAPTIONS}))


def table_utf16(root: Path) -> None:
    draw(root / "photos")
    write(root / "list.csv", rows("id;Title;File", "{n};{text} ü;{n:02d}.jpg", "\r\n"), "utf-16")


def table_tsv(root: Path) -> None:
    draw(root)
    write(root / "t.tsv", rows("image\tcaption\tsplit", "{n:02d}.jpg\t{text}\t{split}"))


def table_parquet(root: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw(root)
    columns = {
        "filename": [f"{n:02d}.jpg" for n in CAPTIONS],
        "caption": list(CAPTIONS.values()),
        "split": SPLITS,
    }
    pq.write_table(pa.table(columns), root / "photos.parquet")


def split_files(root: Path) -> None:
    draw(root)
    for split, ours in (("train", "train"), ("valid", "val"), ("test", "test")):
        lines = [f"{n:02d}.jpg,{text}" for n, text in pairs() if SPLITS[n] == ours]
        write(root / f"{split}.csv", "\n".join(["image,caption", *lines]))


def tables_beside_folders(root: Path) -> None:
    """Each split numbers its photos anew."""
    for split in ("train", "val", "test"):
        numbers = numbers_of(split)
        lines = [f"a/{n - numbers[0]}.jpg,{text}" for n, text in pairs() if n in numbers]
        write(root / f"{split}.csv", "\n".join(["image,caption", *lines]))
        (root / split / "a").mkdir(parents=True)
        for n in numbers:
            (root / split / "a" / f"{n - numbers[0]}.jpg").write_bytes(jpeg(n))


def texts_in_a_folder(root: Path) -> None:
    draw(root / "images")
    for n, texts in CAPTIONS.items():
        write(root / "captions" / f"{n:02d}.txt", f"{texts[0]}, of one colour, on a field")


def sidecars(root: Path) -> None:
    draw(root / "10_shapes")
    for n, texts in CAPTIONS.items():
        write(root / "10_shapes" / f"{n:02d}.txt", "\n".join(texts))


def tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))


def img2dataset(root: Path) -> None:
    for shard in range(2):
        members = {}
        for n in range(shard * 6, shard * 6 + 6):
            facts = {"caption": CAPTIONS[n][0], "url": "https://example.org/", "key": f"{n:09d}"}
            members |= {
                f"{n:09d}.jpg": jpeg(n),
                f"{n:09d}.json": json.dumps(facts).encode(),
                f"{n:09d}.txt": CAPTIONS[n][0].encode(),
            }
        tar(root / f"{shard:05d}.tar", members)
        write(root / f"{shard:05d}_stats.json", '{"count": 6}')


def own_table(root: Path) -> None:
    """As `captioner caption --write csv` writes it."""
    draw(root, "@{:02d}.jpg")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "caption", "confidence"])
    writer.writerows([f"./@{n:02d}.jpg", CAPTIONS[n][0], "0.5"] for n in CAPTIONS)
    write(root / "captions.csv", text.getvalue())


# each with the format it is recognised as, words of the line that says so, and its splits
LAYOUTS: dict[str, tuple[Callable[[Path], None], str, str, tuple[str, ...]]] = {
    f.__name__: (f, format, words, splits)
    for f, format, words, splits in (
        (flickr8k, "flickr8k", "Flickr8k: Flickr8k.token.txt", ("train", "val", "test")),
        (flickr8k_archives, "flickr8k", "Flickr8k: Flickr8k_text/", ("train", "val", "test")),
        (flickr8k_images, "flickr8k", "Flickr8k.token.txt", ("train", "val", "test")),
        (flickr8k_kaggle, "flickr8k", "Kaggle's Flickr8k: captions.txt", ()),
        (flickr30k, "flickr30k", "Flickr30k: results_20130124.token", ()),
        (flickr30k_kaggle, "flickr30k", "Kaggle's Flickr30k: flickr30k_images/results.csv", ()),
        (coco_2017, "coco", "COCO captions: annotations/", ("train2017", "val2017")),
        (coco_2014, "coco", "COCO captions: annotations/", ("train2014", "val2014")),
        (coco_own_names, "coco", "COCO captions: annotations/MINE-train", ("train", "val")),
        (coco_single_file, "coco", "COCO captions: annotations.json", ()),
        (karpathy, "karpathy", "Karpathy's JSON: dataset_fl", ("train", "val", "test")),
        (karpathy_coco, "karpathy", "Karpathy's JSON: dataset_coco", ("train", "val", "test")),
        (imagefolder, "imagefolder", "Hugging Face's", ("test", "train", "val")),
        (imagefolder_train_alone, "imagefolder", "data/train/metadata.csv", ("train",)),
        (imagefolder_csv, "imagefolder", "Hugging Face's imagefolder: metadata.csv", ()),
        (blip, "table", "coco_karpathy_train.json", ("test", "train", "val")),
        (json_map, "table", "table captions.json", ()),
        (table_utf16, "table", "table list.csv", ()),
        (table_tsv, "table", "table t.tsv", ("train", "val", "test")),
        (table_parquet, "table", "table photos.parquet", ("train", "val", "test")),
        (split_files, "table", "table test.csv, train.csv, valid.csv", ("test", "train", "val")),
        (tables_beside_folders, "table", "table test.csv, train.csv", ("test", "train", "val")),
        (texts_in_a_folder, "sidecars", "12 text or JSON files", ()),
        (sidecars, "sidecars", "12 text or JSON files", ()),
        (img2dataset, "webdataset", "WebDataset shards: 00000.tar, 00001.tar", ()),
        (own_table, "table", "table captions.csv", ()),
    )
}
