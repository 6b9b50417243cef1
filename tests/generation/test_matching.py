"""Whether a caption matches an image: the network in NumPy, in PyTorch and word by word."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from pretend_gpu import CUDA, PretendedGPU

from captioner.evaluation import matching
from captioner.evaluation.matching import offered_captions, train_matcher
from captioner.generation.confidence import match

CELLS, DIM = 6, 9


def trained(device: torch.device | str = "cpu") -> dict[str, np.ndarray]:
    """On images that show one of eight things, whose word is right; a ninth channel is dead."""
    generator = np.random.default_rng(0)
    things = generator.integers(0, 8, 600)
    grids = generator.normal(size=(600, CELLS, DIM)) / 4
    grids[np.arange(600), generator.integers(0, CELLS, 600), things] += 4
    grids[..., 8] = 0.1
    captions = [(4 + thing, 5) for thing in range(8)]
    offered = offered_captions(grids.mean(1), things[:, None])
    scores = np.where(offered == things[:, None], 2.0, 0.0)
    log_probs = generator.uniform(-3, 0, (*offered.shape, 2)).astype(np.float32)
    log_probs[..., 1] = np.where(generator.random(offered.shape) < 0.4, -6, -1)
    scores[log_probs[..., 1] == -6] = 0  # what the model finds unlikely is wrong
    given = grids.astype(np.float16), captions, offered, log_probs, scores
    return train_matcher(*given, words=12, right_from=0.5, device=device)


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return trained()


def match_of(
    weights: dict[str, np.ndarray], grid: np.ndarray, words: list[int], log_probs: Sequence[float]
) -> list[float]:
    found = match(weights, grid[None], np.array([[words]]), np.array([[log_probs]]))
    return list(found[0, 0].tolist())


def test_it_learns_what_an_image_shows(weights: dict[str, np.ndarray]) -> None:
    grid = np.zeros((CELLS, DIM), np.float32)
    grid[2, 3] = 4
    logits = {word: match_of(weights, grid, [word, 5], [-1, -1]) for word in range(4, 12)}
    assert match_of(weights, grid, [7, 5], [-1, -6])[0] < -1, "unlikely"
    assert max(logits, key=lambda word: logits[word][0]) == 7
    assert logits[7][0] > 1 > -2 > logits[8][0]
    assert logits[7][1] == pytest.approx(2, abs=0.6)
    assert logits[8][1] == pytest.approx(0, abs=0.6)
    grid[:, 8] = 5  # where training images have one value
    assert match_of(weights, grid, [7, 5], [-1, -1]) == pytest.approx(logits[7])


def test_it_learns_the_same_on_a_gpu(weights: dict[str, np.ndarray]) -> None:
    with PretendedGPU() as gpu:
        found = trained(CUDA)
    assert set(gpu.waits.values()) == {len(weights)}, "its weights are read, at the end"
    assert all(np.array_equal(found[name], weights[name]) for name in weights)


def test_padding_and_other_captions_change_nothing(weights: dict[str, np.ndarray]) -> None:
    grids = np.random.default_rng(1).normal(size=(2, CELLS, DIM))
    captions = [[4, 6, 7], [5], [8, 9, 10, 4, 11]]
    tokens = np.array([[[*words, 0, 0, 0, 0, 0][:6] for words in captions]] * 2)
    log_probs = np.random.default_rng(2).uniform(-9, 0, (2, 3, 6)).astype(np.float32)
    together = match(weights, grids, tokens, log_probs)
    assert together.shape == (2, 3, 2)
    for image, grid in enumerate(grids):
        for caption, words in enumerate(captions):
            alone = match_of(weights, grid, words, log_probs[image, caption, : len(words)])
            assert together[image, caption].tolist() == pytest.approx(alone)
    tensors = {name: torch.from_numpy(each) for name, each in weights.items()}
    inputs = map(torch.from_numpy, (grids.astype(np.float32), tokens, log_probs))
    assert match(tensors, *inputs).numpy() == pytest.approx(together, abs=1e-4)


@pytest.mark.parametrize("numbers", [3, 0], ids=["now", "as earlier versions trained it"])
def test_the_formula_word_by_word(weights: dict[str, np.ndarray], numbers: int) -> None:
    w = {name: each.astype(np.float64) for name, each in weights.items()}
    if not numbers:
        w["pair"] = w["pair"][:-3]
        w["hidden"] = np.delete(w["hidden"], [128, 129, 130, 259, 260, 261], axis=0)
    grid, words = np.random.default_rng(2).normal(size=(CELLS, DIM)), [4, 7, 9]
    log_probs = [-0.5, -9.0, -2.0]  # the second counts as -8
    relu = partial(np.maximum, 0)
    cells = (grid - w["mean"]) / w["scale"]
    found = []
    for word, log_prob in zip(words, log_probs, strict=True):
        query = w["words"][word]
        scores = [query @ (cell @ w["key"] + w["key_bias"]) * 2 / 128**0.5 for cell in cells]
        attention = np.exp(scores) / np.exp(scores).sum()
        seen = attention @ (cells @ w["value"] + w["value_bias"])
        likely = max(log_prob, -8)
        certainty = [-likely / 2, np.exp(likely), np.exp(likely / 8)][:numbers]
        inputs = np.hstack([query, seen, query * seen, certainty])
        found.append(np.hstack([relu(inputs @ w["pair"] + w["pair_bias"]), certainty]))
    image = relu(np.hstack([cells.mean(0), cells.max(0)]) @ w["image"] + w["image_bias"])
    inputs = np.hstack([np.mean(found, 0), np.max(found, 0), image])
    expected = relu(inputs @ w["hidden"] + w["hidden_bias"]) @ w["match"] + w["match_bias"]
    assert match_of(w, grid, words, log_probs) == pytest.approx(expected.tolist(), abs=1e-5)


def test_an_image_is_given_its_own_captions_and_those_of_similar_ones() -> None:
    means = np.random.default_rng(3).normal(size=(100, 4))
    offered = offered_captions(means, [[2 * image, 2 * image + 1] for image in range(100)])
    others = matching.NEAREST + matching.SIMILAR + matching.OTHERS
    assert offered.shape == (100, matching.OWN + others)
    assert offered[7, :2].tolist() == [14, 15], "its own, first"
    standard = (means - means.mean(0)) / means.std(0)
    cosine = standard @ standard[7] / np.linalg.norm(standard, axis=1)
    found = set((offered[7] // 2).tolist())
    assert {*np.argsort(-cosine)[: matching.NEAREST + 1].tolist()} <= found, "and itself"
    assert others - matching.OTHERS < len(found) <= 1 + others
