"""Karpathy's JSON files of Flickr8k, Flickr30k and COCO."""

from __future__ import annotations

from pathlib import Path

from captioner.data.layouts import Annotations, DataFiles, NamedImage, Recognised
from captioner.data.records import read_json
from captioner.errors import DataError, listed


def karpathy(data: DataFiles) -> Recognised | None:
    """Find `dataset_*.json` next to the folders of the images that it names.

    Ids are cocoids if all images have one, else positions in the file.
    """
    files = data.candidates("dataset_*.json") or data.json_files("sentences", "filename")
    names = listed(list(map(data.relative, files)))
    return Recognised(f"Karpathy's JSON: {names}", lambda: _read(data, files)) if files else None


def _read(data: DataFiles, files: list[Path]) -> Annotations:
    path, *others = files
    if others:
        raise DataError(
            f"{data.root} holds {listed(list(map(data.relative, files)))}; choose one with --file "
            "(data.file in a recipe)"
        )
    named: list[NamedImage] = []
    try:
        images = read_json(path)["images"]
        # Positions and cocoids could collide, so one or the other for all of a file.
        have_cocoid = all(isinstance(image.get("cocoid"), int) for image in images)
        for index, image in enumerate(images):
            name = Path(image.get("filepath", ""), image["filename"]).as_posix()
            texts = [s["raw"] if "raw" in s else " ".join(s["tokens"]) for s in image["sentences"]]
            image_id = image["cocoid"] if have_cocoid else index
            captions = tuple(map(str.strip, texts))
            named.append(NamedImage(name, captions, image_id, image["split"].strip()))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: image number {len(named) + 1}: expected filename, split and sentences "
            f"with raw text ({type(error).__name__}: {error}); get the complete file, of "
            "Karpathy's caption_datasets.zip"
        ) from error
    # Flickr's images have no folder in the file; COCO's have.
    usual = data.folder if have_cocoid else data.folder / "images"
    return Annotations(named, [usual, data.folder, path.parent])
