"""CIDEr-D as a reward against coco-caption's own."""

from __future__ import annotations

import random

import numpy as np
from pycocoevalcap.cider.cider_scorer import CiderScorer

from captioner.evaluation.cider import CiderD

WORDS = [f"w{number}" for number in range(30)]


def made_up(seed: int, photos: int = 40) -> tuple[list[list[list[str]]], list[list[str]]]:
    """References of each photo, and one caption, often cut from a reference."""
    rng = random.Random(seed)

    def caption() -> list[str]:
        return [rng.choice(WORDS) for _ in range(rng.randint(1, 14))]

    references = [[caption() for _ in range(rng.randint(1, 5))] for _ in range(photos)]
    captions = [
        caption() if rng.random() < 0.5 else rng.choice(own)[: rng.randint(1, 9)]
        for own in references
    ]
    return references, captions


def by_coco_caption(references: list[list[list[str]]], captions: list[list[str]]) -> np.ndarray:
    scorer = CiderScorer(n=4, sigma=6.0)
    for caption, own in zip(captions, references, strict=True):
        scorer += (" ".join(caption), [" ".join(reference) for reference in own])
    return np.array(scorer.compute_score()[1])


def test_it_is_coco_captions_cider() -> None:
    references, captions = made_up(0)
    own = CiderD(references).scores(range(len(captions)), captions)
    np.testing.assert_allclose(own, by_coco_caption(references, captions), atol=1e-12)
    assert own.std() > 0.1
    np.testing.assert_array_equal(CiderD(references).scores([0, 3], [[], ["new", "words"]]), 0)


def test_several_captions_of_a_photo_in_any_order_are_scored_as_alone() -> None:
    references, captions = made_up(7)
    reward = CiderD(references)
    rng = np.random.default_rng(0)
    photos = rng.integers(0, 5, 30).tolist()
    mixed = [captions[int(rng.integers(len(captions)))] for _ in photos]
    alone = [reward.scores([p], [c])[0] for p, c in zip(photos, mixed, strict=True)]
    np.testing.assert_allclose(reward.scores(photos, mixed), alone, atol=1e-12)
