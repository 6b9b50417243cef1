"""Pictures of a small drawn photo against those in golden/, which a person has examined.

After a change that is meant: CAPTIONER_GOLDEN=write pytest tests/visualization/test_golden.py, and
examine them again.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from captioner.types import Caption, Geometry
from captioner.visualization import (
    OverlayStyle,
    attention_sheet,
    comparison_sheet,
)
from captioner.visualization.animation import caption_frames
from captioner.visualization.overlay import word_overlay

GOLDEN = Path(__file__).parent / "golden"
# Of 255: rounding and the hinting of letters stay below it, a shifted map or another colour do not.
TOLERANCE = 1.5


def photo() -> Image.Image:
    image = Image.new("RGB", (160, 120), "#7fb2e5")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 80, 160, 120), fill="#4c9a3f")
    draw.ellipse((20, 45, 70, 95), fill="#d94f30")
    draw.polygon([(95, 95), (120, 30), (145, 95)], fill="#f2e6c8")
    return image


def caption(*, hard: bool = False) -> Caption:
    y, x = np.mgrid[:6, :8] + 0.5
    maps = [
        np.exp(-((x - a) ** 2 + (y - b) ** 2) / s)
        for a, b, s in [(4, 3, 40), (2.2, 3.6, 1), (6, 3.2, 2)]
    ]
    maps = np.array([m / m.sum() for m in maps], dtype=np.float32)
    return Caption(
        words=["a", "ball", "tent"],
        maps=maps,
        beta=np.array([0.2, 0.7, 0.9], dtype=np.float32),
        log_probs=np.log(np.array([0.8, 0.5, 0.1], dtype=np.float32)),
        geometry=Geometry(160, 120, 0, -20, 160, 160),
        cells=maps.reshape(3, -1).argmax(1) if hard else None,
        paths=np.array([[27, 26, 30], [20, 26, 29]]) if hard else None,
    )


def painted(*, hard=False, **settings):
    return word_overlay(photo(), caption(hard=hard), 1, OverlayStyle(**settings))


def quarter(image: Image.Image) -> Image.Image:
    return image.resize((image.width // 4, image.height // 4), Image.Resampling.BOX)


PICTURES = {
    "focus": lambda: painted(),
    "cells": lambda: painted(smooth=False),
    "light": lambda: painted(kind="light"),
    "colour": lambda: painted(kind="colour"),
    "hard": lambda: painted(hard=True),
    "sheet": lambda: quarter(attention_sheet(photo(), caption())),
    "comparison": lambda: quarter(
        comparison_sheet(photo(), [("soft", caption()), ("hard", caption(hard=True))])
    ),
    "frame": lambda: list(caption_frames(photo(), caption(), OverlayStyle()))[2],
}


def difference(one: Image.Image, other: Image.Image) -> float:
    """The root of the mean square: a few wrong pixels weigh more than many that are nearly right."""
    a, b = (np.asarray(image.convert("RGB"), dtype=float) for image in (one, other))
    return float(np.sqrt(((a - b) ** 2).mean()))


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_is_the_golden_one(name):
    picture, file = PICTURES[name](), GOLDEN / f"{name}.png"
    if os.environ.get("CAPTIONER_GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        picture.save(file, optimize=True)
    with Image.open(file) as golden:
        assert picture.size == golden.size
        assert difference(picture, golden) < TOLERANCE


def test_a_shift_of_one_pixel_is_beyond_the_tolerance():
    for name in PICTURES:
        with Image.open(GOLDEN / f"{name}.png") as golden:
            shifted = Image.new("RGB", golden.size, "white")
            shifted.paste(golden, (1, 0))
            assert difference(shifted, golden) > TOLERANCE, name
