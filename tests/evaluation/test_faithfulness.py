"""The deletion test: what is removed, and that it finds the cells that a decoder reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from captioner.captioner import Captioner
from captioner.evaluation.faithfulness import (
    ORDERS,
    SHARES,
    deletion_in_grid,
    deletion_in_photo,
    removed_cells,
    summary,
)
from captioner.generation import score
from captioner.models.decoders.base import Decoder
from captioner.types import AttentionOutput, Grid


def test_cells_go_in_the_order_of_their_attention() -> None:
    attention = np.random.default_rng(0).permutation(100).astype(float)
    removed = removed_cells(attention, np.random.default_rng(1))
    assert removed.shape == (3, len(SHARES), 100)
    assert removed.sum(-1).tolist() == [[round(100 * share) for share in SHARES]] * 3
    for index, share in enumerate(SHARES):
        count = round(100 * share)
        assert set(attention[removed[0, index]]) == set(range(100 - count, 100))
        assert set(attention[removed[2, index]]) == set(range(count))
    chance = attention[removed[1, -1]]
    assert 20 < chance.mean() < 80
    assert (removed[:, 1:] >= removed[:, :-1]).all(), "what is gone stays gone"


def test_equal_attention_is_removed_in_random_order() -> None:
    generator = np.random.default_rng(0)
    first = [int(removed_cells(np.ones(64), generator)[0, 0].argmax()) for _ in range(50)]
    assert len(set(first)) > 15


@pytest.fixture(scope="module")
def captioner(tiny_model: object) -> Captioner:
    return Captioner.from_pretrained(tiny_model, device="cpu")  # type: ignore[arg-type]


def test_falls_are_those_of_reading_each_changed_grid_alone(captioner: Captioner) -> None:
    decoder: Decoder = captioner.model.decoder
    photo = Image.effect_noise((96, 64), 80).convert("RGB")
    grid, _ = captioner.encode([photo])
    tokens = [5, 7, 4]
    whole = score(decoder, grid, tokens)[0]
    falls = deletion_in_grid(decoder, grid, tokens, whole.maps, np.random.default_rng(3))
    assert falls.shape == (len(ORDERS), len(SHARES), 3)
    generator = np.random.default_rng(3)
    for position in range(3):
        removed = removed_cells(whole.maps[position], generator)
        for order in range(len(ORDERS)):
            for share in range(len(SHARES)):
                features = grid.features.clone()
                features[0, removed[order, share]] = grid.features.mean(1)
                after = score(decoder, Grid(features, grid.height, grid.width), tokens)[0]
                expected = whole.log_probs[position] - after.log_probs[position]
                assert falls[order, share, position] == pytest.approx(expected, abs=1e-5)
    assert np.abs(falls).max() > 1e-4


def test_blur_touches_the_removed_cells_alone(captioner: Captioner) -> None:
    decoder: Decoder = captioner.model.decoder
    photo = Image.effect_noise((96, 64), 80).convert("RGB")
    grid, geometries = captioner.encode([photo])
    seen: list[np.ndarray] = []

    def encode(images: list[Image.Image]) -> Grid:
        seen.extend(np.asarray(image) for image in images)
        return captioner.encode(images)[0]

    tokens = [5, 7]
    maps = score(decoder, grid, tokens)[0].maps
    falls = deletion_in_photo(
        decoder,
        grid,
        tokens,
        maps,
        np.random.default_rng(3),
        photo=photo,
        geometry=geometries[0],
        encode=encode,
    )
    generator = np.random.default_rng(3)
    removed = [removed_cells(m, generator).reshape(-1, grid.height * grid.width) for m in maps]
    assert len(seen) == sum(map(len, removed))
    for image, cells in zip(seen, np.concatenate(removed), strict=True):
        changed = (image != np.asarray(photo)).any(-1)
        inside = np.zeros_like(changed)
        for row, column in np.argwhere(cells.reshape(grid.height, grid.width)):
            x0, y0, x1, y1 = geometries[0].cell_box_px(row, column, grid.height, grid.width)
            inside[max(0, round(y0)) : round(y1), max(0, round(x0)) : round(x1)] = True
        assert changed[inside].mean() > 0.9
        assert not changed[~inside].any()
    assert np.isfinite(falls).all()
    assert np.abs(falls).max() > 1e-5


def test_attention_that_matters_falls_fastest_and_attention_of_noise_does_not() -> None:
    class Reads(torch.nn.Module):
        """Its words follow from one cell of the grid: the first."""

        def prepare(self, grid: Grid) -> torch.Tensor:
            return grid.features

        def start(self, memory: torch.Tensor, times: int) -> None:
            return None

        def step(self, words, state, memory):  # type: ignore[no-untyped-def]
            logits = torch.zeros(len(memory), 1, 6)
            logits[..., 5] = memory[:, :1, 0]
            nothing = torch.zeros(len(memory), 1)
            look = torch.full((len(memory), 1, 40), 1 / 40)
            return logits, AttentionOutput(nothing[..., None], look, nothing, nothing), None

    features = torch.zeros(1, 40, 1)
    features[0, 0] = 8.0
    grid, tokens = Grid(features, 5, 8), [5, 5]
    knows = np.zeros((2, 40))
    knows[:, 0] = 1.0
    decoder: Decoder = Reads()  # type: ignore[assignment]
    good = summary([deletion_in_grid(decoder, grid, tokens, knows, np.random.default_rng(0))])
    bad = summary([deletion_in_grid(decoder, grid, tokens, -knows, np.random.default_rng(0))])
    assert good["num_words"] == 2
    # The word's logit falls from 8 to the mean of the grid, among five others of 0.
    fall = (8 - np.log(np.exp(8) + 5)) - (0.2 - np.log(np.exp(0.2) + 5))
    assert good["attention"] == pytest.approx([fall] * len(SHARES), abs=1e-5)
    assert good["random"][0] < fall / 2  # type: ignore[index]
    assert good["attention_beats_random"] == 1
    assert bad["attention"] == [0.0] * len(SHARES)
    assert bad["reverse"] == pytest.approx([fall] * len(SHARES), abs=1e-5)
