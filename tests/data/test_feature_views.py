"""Random views of cached features."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from captioner.data.feature_views import random_view


class Drawn:
    """A generator that gives the middle of every range, mirrored or not."""

    def __init__(self, *, mirrored: bool) -> None:
        self.mirrored = mirrored

    def random(self) -> float:
        return 0.0 if self.mirrored else 0.9

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


@pytest.mark.parametrize("mirrored", [False, True])
def test_the_whole_map_is_the_map_or_its_mirror_image(mirrored: bool) -> None:
    features = torch.randn(3, 4, 6)
    expected = features.flip(-1) if mirrored else features
    view = random_view(features.half(), Drawn(mirrored=mirrored), min_area=1.0)
    torch.testing.assert_close(view, expected.half().float())


def test_a_crop_from_the_middle_reads_between_the_cells() -> None:
    rows, columns = 5, 8
    y, x = torch.meshgrid(torch.arange(5.0), torch.arange(8.0), indexing="ij")
    view = random_view(torch.stack([y, x]), Drawn(mirrored=False), min_area=0.28)
    share = 0.64**0.5  # the middle of 0.28 and 1
    for row in range(rows):
        for column in range(columns):
            expected_y = (rows - 1) / 2 + share * (row - (rows - 1) / 2)
            expected_x = (columns - 1) / 2 + share * (column - (columns - 1) / 2)
            assert view[0, row, column].item() == pytest.approx(expected_y, abs=1e-5)
            assert view[1, row, column].item() == pytest.approx(expected_x, abs=1e-5)


def test_crops_lie_inside_and_keep_their_share() -> None:
    x = torch.linspace(-1, 1, 64).expand(64, 64)  # a ramp across
    places = torch.stack([x, x.t()])
    generator = np.random.default_rng(0)
    areas, mirrored = [], 0
    for _ in range(300):
        view = random_view(places, generator, min_area=0.5)
        assert view.abs().max() <= 1 + 1e-5
        across = (view[0, 0, -1] - view[0, 0, 0]).item() / 2 / (63 / 64)
        down = (view[1, -1, 0] - view[1, 0, 0]).item() / 2 / (63 / 64)
        mirrored += across < 0
        areas.append(abs(across) * down)
    assert 0.45 < min(areas) < 0.55, "stretched crops are cut where they leave the map"
    assert 0.95 < max(areas) < 1.05
    assert 110 < mirrored < 190
