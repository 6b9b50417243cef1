"""What `captioner evaluate` measures of where a model looks: at which objects, and to what end."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from captioner.cli import whole_number
from captioner.errors import CaptionerError, DataError

if TYPE_CHECKING:
    from captioner.captioner import Captioner
    from captioner.data.captioned import CaptionedImage
    from captioner.evaluation.grounding import GroundedWord
    from captioner.evaluation.objects import Objects
    from captioner.types import Caption

REMOVALS = ("delete", "blur")  # as in evaluation.faithfulness, which brings torch
REGIONS = ("masks", "boxes")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--objects",
        type=Path,
        metavar="FILE",
        help="COCO's instances_*.json of the photos: does attention lie on the objects named?",
    )
    parser.add_argument(
        "--faithfulness",
        type=whole_number,
        default=0,
        metavar="N",
        help="on the first N photos, take away the cells looked at: do the words become unlikely?",
    )
    parser.add_argument(
        "--removal", choices=REMOVALS, default="delete", help="how (default: delete, in the grid)"
    )
    parser.add_argument(
        "--regions",
        choices=REGIONS,
        default="masks",
        help="what of an object counts as it (default: its mask; its box where it has none)",
    )


@dataclass(frozen=True)
class ObjectsOfPhotos:
    """An annotation file, and the number there of each photo that it knows, by image id."""

    objects: Objects
    numbers: dict[int | str, int]

    def counts(self) -> dict[int | str, int]:
        return {i: self.objects.count(number) for i, number in self.numbers.items()}


def objects_in(
    photos: list[CaptionedImage], arguments: argparse.Namespace
) -> ObjectsOfPhotos | None:
    """The objects asked for with --objects.

    Raises:
        DataError: it is no file of objects, or one of other photos.
    """
    if not arguments.objects:
        return None
    from captioner.evaluation.objects import Objects

    objects = Objects.read(arguments.objects)
    numbers = {photo.image_id: objects.image(photo.path) for photo in photos}
    known = {i: number for i, number in numbers.items() if number is not None}
    if not known:
        raise DataError(
            f"{arguments.objects} knows none of the {len(photos)} photos, which are found by their "
            f"names, such as {photos[0].path.name if photos else 'none'}; name the file of these "
            "photos"
        )
    if len(known) < len(numbers):
        print(
            f"{arguments.objects} knows {len(known)} of the {len(numbers)} photos; the others are "
            "not looked at for objects",
            file=sys.stderr,
        )
    return ObjectsOfPhotos(objects, known)


def further(
    captioner: Captioner,
    photos: list[CaptionedImage],
    captions: dict[int | str, Caption],
    objects: ObjectsOfPhotos | None,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """The parts of the results that were asked for."""
    found: dict[str, Any] = {}
    if objects:
        found["grounding"] = _grounding(captioner, photos, captions, objects, arguments)
        found["regions"] = arguments.regions
    if arguments.faithfulness:
        first = photos[: arguments.faithfulness]
        found["faithfulness"] = _faithfulness(captioner, first, captions, arguments)
    return found


def told(further: dict[str, Any]) -> list[str]:
    """Grounding and faithfulness in lines for the terminal; results.json has more."""
    lines = []
    for source, found in further.get("grounding", {}).items():
        lines.append(f"attention on the objects named, {source}: {found['num_words']} words")
        for name, key in (("correctness", "correctness"), ("pointing game", "hit")):
            if found["num_words"]:
                own, uniform, centre = (found[key + kind] for kind in ("", "_uniform", "_centre"))
                low, high = found["intervals"][key]
                lines.append(
                    f"  {name:14} {own:.3f}  [{low:.3f}, {high:.3f}]  "
                    f"(uniform {uniform:.3f}, centre {centre:.3f})"
                )
    faithfulness = further.get("faithfulness", {"num_words": 0})
    if faithfulness["num_words"]:
        shares = "".join(f"{share:8.0%}" for share in faithfulness["shares"])
        lines += [
            f"fall of a word's log-probability, cells taken away: {shares}",
            *(
                f"  in order of {order:37} " + "".join(f"{fall:8.3f}" for fall in faithfulness[key])
                for order, key in (
                    ("attention", "attention"),
                    ("chance", "random"),
                    ("attention, least first", "reverse"),
                )
            ),
        ]
    return lines


def _grounding(
    captioner: Captioner,
    photos: list[CaptionedImage],
    captions: dict[int | str, Caption],
    objects: ObjectsOfPhotos,
    arguments: argparse.Namespace,
) -> dict[str, object]:
    """Of the model's captions, and of the first reference of each photo, which it only reads."""
    from captioner.evaluation.grounding import ground, summary

    written: list[GroundedWord] = []
    read: list[GroundedWord] = []
    boxes = arguments.regions == "boxes"
    split = captioner.vocabulary.tokenizer.split
    known = [photo for photo in photos if photo.image_id in objects.numbers]
    for photo in tqdm(known, desc="grounding", unit="photo", disable=None):
        number = objects.numbers[photo.image_id]
        written += ground(captions[photo.image_id], number, objects.objects, boxes=boxes)
        reference = next((text for text in photo.captions if split(text)), None)
        if reference is None:
            continue
        try:
            caption = captioner.score(photo.path, reference, at_test=arguments.at_test)
        except CaptionerError as error:  # a text longer than the model can read
            tqdm.write(f"{photo.path}: its first reference is left out: {error}", file=sys.stderr)
        else:
            read += ground(caption, number, objects.objects, boxes=boxes)
    return {"captions": summary(written), "references": summary(read)}


def _faithfulness(
    captioner: Captioner,
    photos: list[CaptionedImage],
    captions: dict[int | str, Caption],
    arguments: argparse.Namespace,
) -> dict[str, object]:
    import numpy as np

    from captioner.data.transforms import open_image
    from captioner.evaluation.faithfulness import deletion_in_grid, deletion_in_photo, summary

    generator = np.random.default_rng(0)
    falls = []
    for photo in tqdm(photos, desc="faithfulness", unit="photo", disable=None):
        image, caption = open_image(photo.path), captions[photo.image_id]
        if not caption.words:
            continue
        grid, geometries = captioner.encode([image])
        tokens = captioner.vocabulary.encode(caption.words)
        maps = caption.maps.reshape(len(tokens), -1)
        decoder = captioner.model.decoder
        with captioner.looking(arguments.at_test):
            if arguments.removal == "delete":
                fall = deletion_in_grid(decoder, grid, tokens, maps, generator)
            else:
                fall = deletion_in_photo(
                    decoder,
                    grid,
                    tokens,
                    maps,
                    generator,
                    photo=image,
                    geometry=geometries[0],
                    encode=lambda variants: captioner.encode(variants)[0],
                )
        falls.append(fall)
    return {"removal": arguments.removal, **summary(falls)}
