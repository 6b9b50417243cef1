"""Geometry, Grid and Caption."""

from __future__ import annotations

import json

import numpy as np
import pytest

from captioner.types import Caption, Geometry


@pytest.mark.parametrize("flipped", [False, True])
def test_the_cells_tile_the_rectangle_without_gap_or_overlap(flipped: bool) -> None:
    geometry = Geometry(640, 480, left_px=-20.0, top_px=30.0, width_px=700.0, height_px=333.0)
    geometry = Geometry(**{**vars(geometry), "flipped": flipped})
    rows, columns = 3, 7
    boxes = np.array(
        [[geometry.cell_box_px(r, c, rows, columns) for c in range(columns)] for r in range(rows)]
    )
    if flipped:
        boxes = boxes[:, ::-1]
    np.testing.assert_allclose(boxes[0, 0, :2], (-20, 30))
    np.testing.assert_allclose(boxes[-1, -1, 2:], (680, 363))
    np.testing.assert_allclose(boxes[:, 1:, 0], boxes[:, :-1, 2])
    np.testing.assert_allclose(boxes[1:, :, 1], boxes[:-1, :, 3])
    np.testing.assert_allclose(boxes[..., 2] - boxes[..., 0], 100)
    np.testing.assert_allclose(boxes[..., 3] - boxes[..., 1], 111)


def caption(count: int = 2, **changed: object) -> Caption:
    fields = {
        "words": ["a", "dog", "runs"][:count],
        "maps": np.full((count, 2, 3), 1 / 6, np.float32),
        "beta": np.ones(count, np.float32),
        "log_probs": np.zeros(count, np.float32),
        "geometry": Geometry(6, 4, 0, 0, 6, 4),
    }
    return Caption(**{**fields, **changed})


def test_a_caption_s_text_is_its_words_unless_it_is_given() -> None:
    assert caption().text == "a dog"
    assert caption(text="A dog.").text == "A dog."


def test_a_head_has_its_own_paths_and_another_layer_than_the_last_has_none() -> None:
    paths = np.array([[sample, head] for sample in range(4) for head in range(3)])
    several = caption(heads=np.full((2, 2, 3, 2, 3), 1 / 6, np.float32), paths=paths)
    assert several.of_head(head=2).paths.tolist() == [[sample, 1] for sample in range(4)]
    assert several.of_head(2, 3).paths.tolist() == [[sample, 2] for sample in range(4)]
    assert several.of_head().paths is paths
    assert several.of_head(1).paths is None
    assert several.of_head(1, 2).paths is None


def test_a_caption_as_plain_values_goes_through_json_and_back() -> None:
    maps = np.arange(2 * 2 * 3, dtype=np.float32).reshape(2, 2, 3) / 66
    caption = Caption(
        words=["two", "dogs"],
        maps=maps,
        beta=np.array([0.25, 1 / 3], np.float32),
        log_probs=np.array([-0.5, -2.0], np.float32),
        geometry=Geometry(30, 20, 0, 0, 30, 20),
        end_log_prob=-0.125,
        cells=np.array([5, 0]),
    )
    plain = caption.to_dict()
    assert (
        json.loads(json.dumps(plain))
        == plain
        == {
            "caption": "two dogs",
            "words": ["two", "dogs"],
            "log_probs": [-0.5, -2.0],
            "end_log_prob": -0.125,
            "beta": [0.25, 0.333333],
            "cells": [5, 0],
            "confidence": None,
        }
    )
    whole = json.loads(json.dumps(caption.to_dict(maps=True)))
    np.testing.assert_allclose(whole["maps"], maps, atol=5e-7)
    assert Geometry(**whole["geometry"]) == caption.geometry
    assert "heads" not in whole
