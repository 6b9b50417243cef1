"""Objects of COCO photos, their masks, and the words of captions that name them."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from captioner.errors import DataError

# COCO's 80 categories -> the words of captions that name one of them. One word each, singular and
# plural, of those that COCO's and Flickr's captioners use; a word that would name several
# categories (glass, board, ball) is left out unless captions nearly always mean the one. "man" and
# its like are persons. Lower case.
CATEGORY_WORDS: dict[str, str] = {
    "person": "person persons people man men woman women boy boys girl girls child children kid "
    "kids lady ladies guy guys baby toddler player skier snowboarder surfer skateboarder rider "
    "cyclist biker climber worker officer crowd couple",
    "bicycle": "bicycle bicycles bike bikes",
    "car": "car cars taxi cab suv",
    "motorcycle": "motorcycle motorcycles motorbike motorbikes dirtbike",
    "airplane": "airplane airplanes plane planes jet jets aircraft airliner",
    "bus": "bus buses",
    "train": "train trains locomotive",
    "truck": "truck trucks",
    "boat": "boat boats ship ships canoe kayak sailboat sailboats",
    "traffic light": "stoplight stoplights",
    "fire hydrant": "hydrant hydrants",
    "stop sign": "",
    "parking meter": "meter meters",
    "bench": "bench benches",
    "bird": "bird birds seagull seagulls duck ducks pigeon pigeons parrot owl geese goose",
    "cat": "cat cats kitten kittens",
    "dog": "dog dogs puppy puppies",
    "horse": "horse horses pony ponies",
    "sheep": "sheep lamb lambs",
    "cow": "cow cows cattle bull bulls calf",
    "elephant": "elephant elephants",
    "bear": "bear bears",
    "zebra": "zebra zebras",
    "giraffe": "giraffe giraffes",
    "backpack": "backpack backpacks",
    "umbrella": "umbrella umbrellas",
    "handbag": "handbag handbags purse",
    "tie": "tie ties necktie",
    "suitcase": "suitcase suitcases luggage",
    "frisbee": "frisbee frisbees",
    "skis": "ski skis",
    "snowboard": "snowboard snowboards",
    "sports ball": "ball balls soccerball",
    "kite": "kite kites",
    "baseball bat": "bat bats",
    "baseball glove": "mitt glove",
    "skateboard": "skateboard skateboards",
    "surfboard": "surfboard surfboards",
    "tennis racket": "racket rackets racquet racquets",
    "bottle": "bottle bottles",
    "wine glass": "wineglass wineglasses",
    "cup": "cup cups mug mugs",
    "fork": "fork forks",
    "knife": "knife knives",
    "spoon": "spoon spoons",
    "bowl": "bowl bowls",
    "banana": "banana bananas",
    "apple": "apple apples",
    "sandwich": "sandwich sandwiches",
    "orange": "oranges",
    "broccoli": "broccoli",
    "carrot": "carrot carrots",
    "hot dog": "hotdog hotdogs",
    "pizza": "pizza pizzas",
    "donut": "donut donuts doughnut doughnuts",
    "cake": "cake cakes cupcake cupcakes",
    "chair": "chair chairs",
    "couch": "couch couches sofa",
    "potted plant": "plant plants",
    "bed": "bed beds",
    "dining table": "table tables",
    "toilet": "toilet toilets",
    "tv": "tv television televisions",
    "laptop": "laptop laptops",
    "mouse": "mouse",
    "remote": "remote remotes controller",
    "keyboard": "keyboard keyboards",
    "cell phone": "cellphone phone phones",
    "microwave": "microwave microwaves",
    "oven": "oven ovens stove",
    "toaster": "toaster",
    "sink": "sink sinks",
    "refrigerator": "refrigerator refrigerators fridge",
    "book": "book books",
    "clock": "clock clocks",
    "vase": "vase vases",
    "scissors": "scissors",
    "teddy bear": "teddy",
    "hair drier": "hairdryer",
    "toothbrush": "toothbrush toothbrushes",
}
CATEGORY_OF_WORD = {word: name for name, words in CATEGORY_WORDS.items() for word in words.split()}


@dataclass(frozen=True)
class Objects:
    """The instances of a COCO annotation file, by image.

    Raises on reading (`Objects.read`):
        DataError: it is no COCO instances file.
    """

    coco: Any  # pycocotools.coco.COCO
    categories: dict[str, int]

    @classmethod
    def read(cls, path: Path) -> Objects:
        from pycocotools.coco import COCO

        if not path.is_file():
            raise DataError(f"there is no file {path}; name COCO's instances_*.json")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                coco = COCO(str(path))
            categories = {c["name"]: c["id"] for c in coco.dataset["categories"]}
            # Only captions have none of these.
            if not all("category_id" in a and "bbox" in a for a in coco.dataset["annotations"]):
                raise KeyError("bbox")
        except (ValueError, LookupError, TypeError, AssertionError, AttributeError) as error:
            raise DataError(
                f"{path} is no file of COCO instances; name one such as instances_val2017.json"
            ) from error
        return cls(coco, categories)

    def count(self, image_id: int | str) -> int:
        """Annotated objects in an image; 0 for one that the file does not know."""
        return len(self.coco.imgToAnns.get(image_id, ()))

    def mask(self, image_id: int | str, category: str, *, boxes: bool = False) -> np.ndarray | None:
        """Where an image shows objects of a category: bool [height, width] of the photo, or None.

        boxes: their bounding boxes instead of their outlines.
        """
        image = self.coco.imgs.get(image_id)
        if image is None or category not in self.categories:
            return None
        found = [
            annotation
            for annotation in self.coco.imgToAnns.get(image_id, ())
            if annotation["category_id"] == self.categories[category]
        ]
        if not found:
            return None
        mask = np.zeros((image["height"], image["width"]), bool)
        for annotation in found:
            if boxes:
                x, y, width, height = annotation["bbox"]
                mask[
                    round(y) : max(round(y) + 1, round(y + height)),
                    round(x) : max(round(x) + 1, round(x + width)),
                ] = True
            else:
                mask |= self.coco.annToMask(annotation).astype(bool)
        return mask if mask.any() else None
