"""Objects of COCO photos, their masks, and the words of captions that name them."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from captioner.errors import DataError

# COCO's 80 categories -> the words of captions that name one of them, singular and plural, of those
# that COCO's and Flickr's captioners use; two words are joined by "_". A word that would name
# several categories (glass, board, ball) is left out unless captions nearly always mean the one.
# "man" and its like are persons. Lower case.
CATEGORY_WORDS: dict[str, str] = {
    "person": "person persons people man men woman women boy boys girl girls child children kid "
    "kids lady ladies guy guys baby babies toddler toddlers player players skier skiers "
    "snowboarder snowboarders snow_boarder surfer surfers skateboarder skateboarders "
    "skate_boarder rider riders cyclist cyclists biker bikers climber climbers worker workers "
    "officer officers crowd couple couples",
    "bicycle": "bicycle bicycles bike bikes",
    "car": "car cars taxi taxis cab cabs suv suvs",
    "motorcycle": "motorcycle motorcycles motor_cycle motor_cycles motorbike motorbikes motor_bike "
    "motor_bikes dirtbike dirtbikes dirt_bike dirt_bikes",
    "airplane": "airplane airplanes air_plane air_planes plane planes jet jets aircraft "
    "airliner airliners",
    "bus": "bus buses",
    "train": "train trains locomotive locomotives",
    "truck": "truck trucks",
    "boat": "boat boats ship ships canoe canoes kayak kayaks sailboat sailboats sail_boat "
    "sail_boats",
    "traffic light": "stoplight stoplights stop_light stop_lights traffic_light traffic_lights",
    "fire hydrant": "hydrant hydrants",
    "stop sign": "stop_sign stop_signs",
    "parking meter": "parking_meter parking_meters meter meters",
    "bench": "bench benches",
    "bird": "bird birds seagull seagulls duck ducks pigeon pigeons parrot "
    "parrots owl owls geese goose",
    "cat": "cat cats kitten kittens",
    "dog": "dog dogs puppy puppies",
    "horse": "horse horses pony ponies",
    "sheep": "sheep lamb lambs",
    "cow": "cow cows cattle bull bulls calf calves",
    "elephant": "elephant elephants",
    "bear": "bear bears",
    "zebra": "zebra zebras",
    "giraffe": "giraffe giraffes",
    "backpack": "backpack backpacks back_pack back_packs",
    "umbrella": "umbrella umbrellas",
    "handbag": "handbag handbags purse purses",
    "tie": "tie ties necktie neckties neck_tie neck_ties",
    "suitcase": "suitcase suitcases suit_case suit_cases luggage",
    "frisbee": "frisbee frisbees",
    "skis": "ski skis",
    "snowboard": "snowboard snowboards snow_board snow_boards",
    "sports ball": "ball balls soccerball soccerballs soccer_ball soccer_balls",
    "kite": "kite kites",
    "baseball bat": "bat bats baseball_bat baseball_bats",
    "baseball glove": "mitt mitts baseball_glove baseball_gloves glove gloves",
    "skateboard": "skateboard skateboards skate_board skate_boards",
    "surfboard": "surfboard surfboards surf_board surf_boards",
    "tennis racket": "racket rackets racquet racquets",
    "bottle": "bottle bottles",
    "wine glass": "wineglass wineglasses wine_glass wine_glasses",
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
    "hot dog": "hotdog hotdogs hot_dog hot_dogs",
    "pizza": "pizza pizzas",
    "donut": "donut donuts doughnut doughnuts",
    "cake": "cake cakes cupcake cupcakes",
    "chair": "chair chairs",
    "couch": "couch couches sofa sofas",
    "potted plant": "plant plants",
    "bed": "bed beds",
    "dining table": "table tables",
    "toilet": "toilet toilets",
    "tv": "tv television televisions",
    "laptop": "laptop laptops lap_top lap_tops",
    "mouse": "mouse",
    "remote": "remote remotes controller controllers",
    "keyboard": "keyboard keyboards",
    "cell phone": "cellphone cellphones cell_phone cell_phones phone phones",
    "microwave": "microwave microwaves",
    "oven": "oven ovens stove stoves",
    "toaster": "toaster toasters",
    "sink": "sink sinks",
    "refrigerator": "refrigerator refrigerators fridge fridges",
    "book": "book books",
    "clock": "clock clocks",
    "vase": "vase vases",
    "scissors": "scissors",
    "teddy bear": "teddy teddies teddy_bear teddy_bears",
    "hair drier": "hairdryer hairdryers hair_dryer hair_dryers hair_drier hair_driers",
    "toothbrush": "toothbrush toothbrushes tooth_brush tooth_brushes",
}
CATEGORY_OF_WORD = {word: name for name, words in CATEGORY_WORDS.items() for word in words.split()}
# A place or a thing that is called after an object, which need not be there.
CALLED_AFTER = frozenset(
    "train_station train_stations train_track train_tracks train_yard train_platform bus_stop "
    "bus_stops bus_station bus_stations toilet_paper ski_slope ski_slopes ski_lift ski_resort "
    "ski_pole ski_poles book_shelf book_shelves bird_feeder pizza_box pizza_boxes bed_room".split()
)
# Persons, unless what they are of or like comes next: a couple of dogs, a baby elephant.
COLLECTIVES = frozenset({"couple", "crowd"})
YOUNG = frozenset({"baby"})
# COCO's file names of 2014 and of 2017 end in the same number.
_COCO_NUMBER = re.compile(r"(?:.*_)?(\d{12})\.\w+")


def named_categories(words: Sequence[str]) -> list[str | None]:
    """For each word of a caption the category that it names, or None.

    Where two words name one together (a hot dog), the second names it; where they name something
    that is only called after one (a train station), neither does.

    >>> named_categories("a hot dog on a couple of buses".split())
    [None, None, 'hot dog', None, None, None, None, 'bus']
    """
    categories = [CATEGORY_OF_WORD.get(word) for word in words]
    for index, (word, following) in enumerate(itertools.pairwise(words)):
        pair = f"{word}_{following}"
        if together := CATEGORY_OF_WORD.get(pair):
            categories[index : index + 2] = [None, together]
        elif pair in CALLED_AFTER:
            categories[index : index + 2] = [None, None]
        elif (word in COLLECTIVES and following == "of") or (
            word in YOUNG and CATEGORY_OF_WORD.get(following)
        ):
            categories[index] = None
    return categories


@dataclass(frozen=True)
class Objects:
    """The instances of a COCO annotation file, by image.

    Raises on reading (`Objects.read`):
        DataError: it is no COCO instances file.
    """

    coco: Any  # pycocotools.coco.COCO
    categories: dict[str, int]
    by_name: dict[str, int]

    @classmethod
    def read(cls, path: Path) -> Objects:
        from pycocotools.coco import COCO

        if not path.is_file():
            raise DataError(f"there is no file {path}; name COCO's instances_*.json")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                coco = COCO(str(path))
            categories = {c["name"]: c["id"] for c in coco.dataset["categories"]}
            for annotation in coco.dataset["annotations"]:
                annotation["category_id"], annotation["image_id"]  # captions have none
                x, y, width, height = annotation["bbox"]
                x + y + width + height
                _check_outline(annotation, coco.imgs.get(annotation["image_id"]))
            sizes = [image["height"] * image["width"] for image in coco.dataset["images"]]
            if min(sizes, default=1) < 1:
                raise ValueError("an image without a size")
        except (ValueError, LookupError, TypeError, AssertionError, AttributeError) as error:
            raise DataError(
                f"{path} is no file of COCO instances; name one such as instances_val2017.json"
            ) from error
        by_name: dict[str, int] = {}
        for number, image in coco.imgs.items():
            name = Path(str(image.get("file_name", ""))).name
            for key in {name, _number_in(name)} - {""}:
                by_name[key] = number
        return cls(coco, categories, by_name)

    def image(self, photo: Path) -> int | None:
        """The number of a photo in the file, found by its name; COCO's two names are one photo."""
        keys = (photo.name, _number_in(photo.name))
        return next((self.by_name[key] for key in keys if key in self.by_name), None)

    def count(self, image: int) -> int:
        """Annotated objects in an image."""
        return len(self.coco.imgToAnns.get(image, ()))

    def mask(self, image: int, category: str, *, boxes: bool = False) -> np.ndarray | None:
        """Where an image shows objects of a category: bool [height, width] of the file, or None.

        boxes: their bounding boxes instead of their outlines, as where an object has no outline.
        """
        if category not in self.categories:
            return None
        found = [
            annotation
            for annotation in self.coco.imgToAnns.get(image, ())
            if annotation["category_id"] == self.categories[category]
        ]
        if not found:
            return None
        size = self.coco.imgs[image]
        mask = np.zeros((size["height"], size["width"]), bool)
        for annotation in found:
            outlines = _outlines(annotation)
            if boxes or not outlines:
                x, y, width, height = annotation["bbox"]
                mask[
                    round(y) : max(round(y) + 1, round(y + height)),
                    round(x) : max(round(x) + 1, round(x + width)),
                ] = True
            else:
                drawn = self.coco.annToMask(annotation | {"segmentation": outlines})
                mask |= drawn.astype(bool)
        return mask if mask.any() else None


def _outlines(annotation: Mapping[str, Any]) -> Any:
    """Run lengths, or polygons: without those of fewer than three corners, which enclose nothing
    and which pycocotools takes for boxes, or not at all."""
    found = annotation.get("segmentation")
    return [polygon for polygon in found if len(polygon) >= 6] if isinstance(found, list) else found


def _check_outline(annotation: Mapping[str, Any], image: Mapping[str, Any] | None) -> None:
    """Raises ValueError, LookupError or TypeError where pycocotools could not draw it."""
    found = annotation.get("segmentation")
    if isinstance(found, list):
        for polygon in found:
            if len(polygon) % 2:
                raise ValueError("a corner without its y")
            sum(polygon)
    elif found:
        if image and list(found["size"]) != [image["height"], image["width"]]:
            raise ValueError("an outline of another size than its image")
        if isinstance(found["counts"], list):
            sum(found["counts"])


def _number_in(name: str) -> str:
    match = _COCO_NUMBER.fullmatch(name)
    return match[1] if match else ""
