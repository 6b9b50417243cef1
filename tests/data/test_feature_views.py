"""Random views of cached features."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from captioner.data.feature_cache import FeatureCrop


class Drawn:
    """A generator that gives the middle of every range."""

    def random(self) -> float:
        return 0.5

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


@pytest.mark.parametrize("mirrored", [False, True])
def test_the_whole_map_is_the_map_or_its_mirror_image(mirrored: bool) -> None:
    features = torch.randn(3, 4, 6)
    expected = features.flip(-1) if mirrored else features
    view = FeatureCrop(1.0, flip=float(mirrored))(features.half(), Drawn())
    torch.testing.assert_close(view, expected.half().float())


def test_a_crop_from_the_middle_reads_between_the_cells() -> None:
    rows, columns = 5, 8
    y, x = torch.meshgrid(torch.arange(5.0), torch.arange(8.0), indexing="ij")
    view = FeatureCrop(0.28, flip=0.0)(torch.stack([y, x]), Drawn())
    share = 0.64**0.5  # the middle of 0.28 and 1
    for row in range(rows):
        for column in range(columns):
            expected_y = (rows - 1) / 2 + share * (row - (rows - 1) / 2)
            expected_x = (columns - 1) / 2 + share * (column - (columns - 1) / 2)
            assert view[0, row, column].item() == pytest.approx(expected_y, abs=1e-5)
            assert view[1, row, column].item() == pytest.approx(expected_x, abs=1e-5)


@pytest.mark.parametrize("min_area", [0.5, 0.95])
def test_crops_lie_inside_and_keep_their_share(min_area: float) -> None:
    x = torch.linspace(-1, 1, 64).expand(64, 64)  # a ramp across
    places = torch.stack([x, x.t()])
    generator = np.random.default_rng(0)
    crop = FeatureCrop(min_area, flip=0.3)
    areas, stretches, mirrored = [], [], 0
    for _ in range(300):
        view = crop(places, generator)
        assert view.abs().max() <= 1 + 1e-5
        # away from the border, where there is nothing to read between
        across = (view[0, 32, 40] - view[0, 32, 24]).item() * 63 / 32
        down = (view[1, 40, 32] - view[1, 24, 32]).item() * 63 / 32
        mirrored += across < 0
        areas.append(abs(across) * down)
        stretches.append(abs(across) / down)
    assert min_area - 1e-4 <= min(areas) < min_area + 0.05
    assert 0.95 < max(areas) < 1 + 1e-4
    assert max(stretches) > (1.15 if min_area == 0.5 else 1.01)
    assert 60 < mirrored < 120
