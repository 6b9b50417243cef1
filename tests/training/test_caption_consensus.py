"""Captions weighed by what a photo's captions agree on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny

from captioner.data.captioned import CaptionedImage
from captioner.data.dataset import encode_captions
from captioner.data.vocabulary import Vocabulary
from captioner.evaluation.cider import CiderD
from captioner.training import train
from captioner.training.caption_consensus import caption_reward, consensus_weights


def test_captions_that_a_photo_s_others_agree_with_weigh_more(tmp_path: Path) -> None:
    captions = ["a dog in snow", "a dog in the snow", "...", "xylophones everywhere"]
    photos = [
        CaptionedImage(tmp_path / "0.jpg", tuple(captions), 0),
        CaptionedImage(tmp_path / "1.jpg", ("two men", "two men"), 1),
        CaptionedImage(tmp_path / "2.jpg", ("a lonely caption",), 2),
    ]
    vocabulary = Vocabulary("a dog in the snow two men".split())
    encoded = encode_captions(photos, vocabulary, max_words=9)
    assert encoded.image_of.tolist() == [0, 0, 0, 1, 1, 2], "captions without words are left out"

    def weighted(share: float) -> np.ndarray:
        return consensus_weights(photos, encoded, vocabulary.tokenizer, share)

    weights = weighted(1.0)
    first, second, other = weights[:3].tolist()
    assert min(first, second) > 1.0 > other == 0.0
    assert first + second + other == pytest.approx(3.0)
    assert weights[3:].tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(weighted(0.25), 0.75 + 0.25 * weights, rtol=1e-6)


def test_a_run_can_weigh_captions_by_consensus(tmp_path: Path) -> None:
    table = tiny.draw_table(tmp_path / "photos")  # with two captions a photo, which agree alike
    with (table / "captions.csv").open("a", encoding="utf-8") as file:
        file.writelines(f"{number:02d}.jpg,nothing of it,train\n" for number in range(12))
    runs = [tmp_path / name for name in ("plain", "weighed")]
    for run, share in zip(runs, (0.0, 1.0), strict=True):
        train(tiny.recipe(table, run, loss__consensus=share, train__epochs=1))
    logs = [(run / "metrics.jsonl").read_text().splitlines() for run in runs]
    plain, weighed = ([json.loads(line) for line in log] for log in logs)
    assert plain[0]["cross_entropy"] == weighed[0]["cross_entropy"]
    assert plain[0]["smoothed"] != weighed[0]["smoothed"]


def test_the_reward_counts_the_end_of_a_caption(tmp_path: Path) -> None:
    """Without it, captions that stop in the middle of a sentence lose nothing."""
    images = [
        CaptionedImage(tmp_path / "0.jpg", ("A dog in the snow.", "a dog"), 0),
        CaptionedImage(tmp_path / "1.jpg", ("two men",), 1),
    ]
    reward = caption_reward(images, Vocabulary([]).tokenizer)
    by_hand = CiderD(
        [["a dog in the snow <end>".split(), "a dog <end>".split()], ["two men <end>".split()]]
    )
    captions = [text.split() for text in ("a dog <end>", "a dog", "a dog in the", "a dog in <end>")]
    scores = reward.scores([0] * len(captions), captions)
    assert scores.tolist() == by_hand.scores([0] * len(captions), captions).tolist()
    assert scores[0] > scores[1], "a caption that ends as the references do earns more"
