"""Intervals: corpus figures from counts equal the scorers', and the bootstrap does what it says."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest

from captioner.errors import DataError
from captioner.evaluation.intervals import (
    RESAMPLES,
    ImageScores,
    bleu,
    bootstrap_intervals,
    meteor,
    paired_bootstrap,
)
from captioner.evaluation.metrics import python_scores, score_captions

WORDS = (
    "man dog red ball park tree runs running sits sat on the a big large old blue near kid".split()
)


def sentences(seed: int, count: int) -> tuple[list[str], list[list[str]]]:
    generator = random.Random(seed)

    def sentence() -> str:
        return " ".join(generator.choices(WORDS, k=generator.randint(0, 12)))

    return [sentence() for _ in range(count)], [
        [sentence() + " dog" for _ in range(generator.randint(1, 5))] for _ in range(count)
    ]


def test_bleu_of_any_multiset_of_images_follows_from_summed_counts() -> None:
    candidates, references = sentences(0, 30)
    counts = np.array(python_scores(candidates, references)["Bleu_4"].counts)
    chosen = random.Random(0).choices(range(30), k=20)
    table = python_scores([candidates[i] for i in chosen], [references[i] for i in chosen])
    expected = [table[f"Bleu_{n}"].corpus for n in range(1, 5)]
    assert bleu(counts[chosen].sum(0)) == pytest.approx(expected, rel=1e-12, abs=1e-15)
    each = [python_scores([candidates[i]], [references[i]])["Bleu_2"].corpus for i in range(30)]
    assert bleu(counts)[:, 1] == pytest.approx(each, rel=1e-12, abs=1e-15)


@pytest.mark.skipif(shutil.which("java") is None, reason="METEOR needs Java")
@pytest.mark.slow
def test_meteor_of_any_multiset_of_images_follows_from_summed_counts() -> None:
    """Of pycocoevalcap's own METEOR, which scores what it counts."""
    from pycocoevalcap.meteor.meteor import Meteor

    from captioner.evaluation.metrics import Java, meteor_scores

    candidates, references = sentences(1, 40)
    candidates[3] = references[3][0]  # a perfect one: a single chunk is no fragmentation
    scored = meteor_scores(candidates, references, Java())["METEOR"]
    counts = np.array(scored.counts)

    def expected(chosen: list[int]) -> tuple[float, list[float]]:
        truths, texts = ({i: x[n] for i, n in enumerate(chosen)} for x in (references, candidates))
        return Meteor().compute_score(truths, {i: [text] for i, text in texts.items()})

    corpus, images = expected(list(range(40)))
    assert scored.images == pytest.approx(images, abs=1e-12)
    assert images[3] == pytest.approx(1)
    assert 0.0 in images
    assert scored.corpus == pytest.approx(corpus, abs=1e-12)
    chosen = random.Random(1).choices(range(40), k=25)
    assert meteor(counts[chosen].sum(0)) == pytest.approx(expected(chosen)[0], abs=1e-12)


def test_the_whole_set_gives_the_corpus_figures_and_lies_in_its_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no Java, which takes seconds
    candidates, references = sentences(2, 60)
    by_id = dict(enumerate(candidates)), dict(enumerate(references))
    scores = score_captions(*by_id)
    images = ImageScores.of(scores["images"])
    whole = images.corpus(np.ones(60))
    intervals = bootstrap_intervals(images)
    metrics = scores["metrics"]
    assert set(whole) == set(intervals) == {n for n, v in metrics.items() if v is not None}
    for name, value in whole.items():
        assert float(value) == pytest.approx(metrics[name], rel=1e-12), name
        low, high = intervals[name]
        assert low < float(value) < high, name
    assert intervals == bootstrap_intervals(images)


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(0).normal(3, 2, 2000)
    low, high = bootstrap_intervals(ImageScores(list(range(2000)), {"CIDEr": values}, {}))["CIDEr"]
    half = 1.96 * values.std() / np.sqrt(2000)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.012)


def test_a_paired_comparison_finds_a_difference_that_separate_intervals_hide() -> None:
    generator = np.random.default_rng(0)
    difficulty = generator.normal(0, 5, 400)  # the same for both systems
    a = ImageScores(list(range(400)), {"CIDEr": difficulty}, {})
    better = difficulty + generator.normal(0.3, 1, 400)
    order = generator.permutation(400)
    b = ImageScores(order.tolist(), {"CIDEr": better[order]}, {})
    found = paired_bootstrap(a, b)["CIDEr"]
    assert found.difference == pytest.approx((better - difficulty).mean())
    assert 0 < found.low < found.difference < found.high
    assert found.p == 1 / RESAMPLES
    one, other = bootstrap_intervals(a)["CIDEr"], bootstrap_intervals(b)["CIDEr"]
    assert one[1] > other[0]
    alike = difficulty + generator.permutation(np.tile([1.0, -1.0], 200))
    assert paired_bootstrap(a, ImageScores(list(range(400)), {"CIDEr": alike}, {}))["CIDEr"].p > 0.5


def test_results_of_other_images_are_not_compared() -> None:
    a = ImageScores([1, 2], {"CIDEr": np.zeros(2)}, {})
    b = ImageScores([1, 3], {"CIDEr": np.zeros(2)}, {})
    with pytest.raises(DataError, match="not of the same images: 2 are in one alone, such as 2"):
        paired_bootstrap(a, b)


def test_captions_without_a_match_differ_by_nothing_but_bleu_s_small_numbers() -> None:
    counts = {
        length: [length, 9, length, max(0, length - 1), 0, 0, 0, 0, 0, 0] for length in (1, 9)
    }
    one, other = (
        ImageScores([0, 1], {}, {"Bleu_4": np.array([row, row], float)}) for row in counts.values()
    )
    assert paired_bootstrap(one, other)["Bleu_4"].p == 1
