"""Karpathy's JSON files of Flickr8k, Flickr30k and COCO."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from captioner.data.captioned import CaptionedImage, DataFiles, check_splits
from captioner.data.text_files import (
    find_captions_file,
    normalize_spaces,
    quoted,
    read_json_object,
)
from captioner.errors import DataError

# Where the images of a file lie: in its own folder, or under the archives' own names.
_IMAGE_FOLDERS = ("", "images", "flickr30k-images", "Flicker8k_Dataset")


def read(data: DataFiles, splits: Sequence[str]) -> list[CaptionedImage]:
    """Read `file` or the only dataset_*.json, and images in root or one of the archives' folders.

    Images lie below the folder that the file gives as `filepath`, if it does. Ids are cocoids if
    all images have one, else positions in the file.
    """
    data.refuse("coco_splits")
    root = Path(data.root)
    path = find_captions_file(root, data.file, ("dataset_*.json",))
    images = read_json_object(path).get("images")
    if not isinstance(images, list):
        raise DataError(f'{path} has no list "images"; it is not a Karpathy data set')
    # Positions and cocoids could collide, so one or the other for all of a file.
    have_cocoid = all(isinstance(image, dict) and "cocoid" in image for image in images)
    found_splits: set[str] = set()
    ids: set[int | str] = set()
    captioned = []
    for index, image in enumerate(images):
        try:
            split, name, folder = image["split"], image["filename"], image.get("filepath", "")
            captions = tuple(normalize_spaces(sentence["raw"]) for sentence in image["sentences"])
            relative = Path(folder, name)
            found_splits.add(split)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}, image number {index + 1}: expected filename, split and sentences with "
                f"raw text ({type(error).__name__}: {error})"
            ) from error
        if split in splits:
            places = [root / base / relative for base in _IMAGE_FOLDERS]
            usual = places[0] if folder else places[1]
            found = next((place for place in places if place in data.existing), usual)
            image_id = image["cocoid"] if have_cocoid else index
            if not isinstance(image_id, (int, str)) or image_id in ids:
                raise DataError(
                    f"{path}, image number {index + 1}: cocoid must be a number or a text that no "
                    f"other image has, not {quoted(repr(image_id))}"
                )
            ids.add(image_id)
            captioned.append(CaptionedImage(found, captions, image_id))
    check_splits(path, splits, found_splits)
    return captioned
