"""Karpathy's JSON files of Flickr8k, Flickr30k and COCO."""

from __future__ import annotations

from pathlib import Path

from captioner.data.layouts import Annotations, DataFiles, NamedImage, Recognised
from captioner.data.text_files import read_json_object
from captioner.errors import DataError, listed


def karpathy(data: DataFiles) -> Recognised | None:
    """Find `dataset_*.json` next to the folders of the images that it names.

    Ids are cocoids if all images have one, else positions in the file.
    """
    files = _files(data)
    names = listed(list(map(data.relative, files)))
    return Recognised(f"Karpathy's JSON: {names}", lambda: _read(data, files)) if files else None


def _read(data: DataFiles, files: list[Path]) -> Annotations:
    path, *others = files
    if others:
        raise DataError(
            f"{data.root} holds {listed(list(map(data.relative, files)))}; choose one with --file "
            "(data.file in a recipe)"
        )
    images = read_json_object(path).get("images")
    if not isinstance(images, list):
        raise DataError(f'{path} has no list "images"; it is not a Karpathy data set')
    # Positions and cocoids could collide, so one or the other for all of a file.
    have_cocoid = all(isinstance(i, dict) and isinstance(i.get("cocoid"), int) for i in images)
    named = []
    for index, image in enumerate(images):
        try:
            name = Path(image.get("filepath", ""), image["filename"]).as_posix()
            split = image["split"].strip()
            texts = [s["raw"] if "raw" in s else " ".join(s["tokens"]) for s in image["sentences"]]
            captions = tuple(map(str.strip, texts))
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}, image number {index + 1}: expected filename, split and sentences "
                f"with raw text ({type(error).__name__}: {error}); get the complete file, of "
                "Karpathy's caption_datasets.zip"
            ) from error
        image_id = image["cocoid"] if have_cocoid else index
        named.append(NamedImage(name, captions, image_id, split))
    # Flickr's images have no folder in the file; COCO's have.
    usual = data.folder if have_cocoid else data.folder / "images"
    return Annotations(named, [usual, data.folder, path.parent])


def _files(data: DataFiles) -> list[Path]:
    usual = data.candidates("dataset_*.json", "dataset.json")
    if usual and (data.named_file is None or usual[0].match("dataset_*.json")):
        return usual
    found = data.candidates("*.json")
    if data.named_file is not None and data.format == "karpathy":
        return found
    return list(filter(_has_sentences, found))


def _has_sentences(path: Path) -> bool:
    with path.open("rb") as file:
        beginning = file.read(100_000)
    return b'"sentences"' in beginning and b'"filename"' in beginning
