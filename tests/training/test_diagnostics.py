"""The figures that show whether attention and captions are alive, against plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from captioner.config.settings import Config
from captioner.generation import Hypothesis
from captioner.models.decoders.base import TeacherForcingOutput
from captioner.training.cross_entropy import attention_statistics
from captioner.training.validation import (
    EARLY_STEPS,
    Validation,
    generated_attention_statistics,
    print_validation,
)


def random_maps(words: int, cells: int, seed: int) -> np.ndarray:
    maps = np.random.default_rng(seed).random((words, cells)) ** 3
    return maps / maps.sum(1, keepdims=True)


def plain_figures(captions: list[np.ndarray], betas: list[np.ndarray] | None) -> dict[str, float]:
    """Means over all words, and over all pairs of neighbouring words."""
    entropies, changes = [], []
    for maps in captions:
        for word in maps.tolist():
            entropy = -sum(share * math.log(share) for share in word if share > 0)
            entropies.append(entropy / math.log(len(word)))
        for one, other in zip(maps.tolist(), maps.tolist()[1:], strict=False):
            changes.append(sum(abs(a - b) for a, b in zip(one, other, strict=True)) / 2)
    found = {"attention_entropy": sum(entropies) / len(entropies)}
    if changes:
        found["attention_change"] = sum(changes) / len(changes)
    if betas is not None:
        values = [value for beta in betas for value in beta.tolist()]
        found["beta"] = sum(values) / len(values)
    return found


def forced_of(captions: list[np.ndarray], betas: list[np.ndarray] | None) -> Any:
    words = max(len(maps) for maps in captions)
    padded = torch.zeros(len(captions), words, captions[0].shape[1])
    entropy = torch.zeros(len(captions), words)
    beta = torch.zeros(len(captions), words)
    for n, maps in enumerate(captions):
        padded[n, : len(maps)] = torch.from_numpy(maps)
        entropy[n, : len(maps)] = torch.from_numpy(-(maps * np.log(maps)).sum(1))
        if betas is not None:
            beta[n, : len(maps)] = torch.from_numpy(betas[n])
    lengths = torch.tensor([len(maps) for maps in captions])
    logits = torch.zeros(int(lengths.sum()), 5)
    zeros = torch.zeros_like(beta)
    beta_or_none = None if betas is None else beta
    return TeacherForcingOutput(logits, padded, entropy, zeros, beta_or_none), lengths


def hypothesis_of(maps: np.ndarray, beta: np.ndarray | None) -> Hypothesis:
    words = len(maps)
    return Hypothesis(
        tokens=[4] * words,
        log_probs=np.zeros(words, np.float32),
        end_log_prob=None,
        maps=maps.astype(np.float32),
        beta=beta,
        cells=None,
        score=0.0,
    )


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("lengths", [[5, 5, 3, 1], [4], [1, 1]], ids=str)
def test_figures_of_training_batches_and_of_written_captions_are_plain_means(
    lengths: list[int], gated: bool
) -> None:
    captions = [random_maps(words, 6, seed) for seed, words in enumerate(lengths)]
    betas = [np.random.default_rng(n).random(words) for n, words in enumerate(lengths)]
    expected = plain_figures(captions, betas if gated else None)
    forced, counts = forced_of(captions, betas if gated else None)
    figures = attention_statistics(forced, float(counts.sum()), len(counts))
    found = {name: float(value) for name, value in figures.items()}
    assert found == pytest.approx({"attention_change": 0.0, **expected}, rel=1e-5)
    hypotheses = [
        hypothesis_of(maps, beta if gated else None)
        for maps, beta in zip(captions, betas, strict=True)
    ]
    assert generated_attention_statistics(hypotheses) == pytest.approx(expected, rel=1e-5)


def test_the_entropy_of_several_heads_is_their_mean_and_not_that_of_their_mean_map() -> None:
    """As that of training, which is drawn in the same panel."""
    heads = np.zeros((2, 1, 2, 4), np.float32)  # [T, layers, heads, L]
    heads[:, :, 0, 0] = heads[:, :, 1, 1] = 1.0  # each head attends to one cell
    hypothesis = replace(hypothesis_of(heads.mean((1, 2)), None), heads=heads)
    assert generated_attention_statistics([hypothesis])["attention_entropy"] == 0.0


ALIVE = {"attention_entropy": 0.8, "attention_change": 0.3, "distinct_captions": 0.5}


@pytest.mark.parametrize(
    ("figures", "step", "said"),
    [
        ({}, EARLY_STEPS, ""),
        ({"attention_entropy": 0.999, "attention_change": 0.0}, EARLY_STEPS, "attention is flat"),
        ({"attention_entropy": 0.999}, EARLY_STEPS - 1, ""),  # before attention could move
        ({"attention_change": 0.001}, EARLY_STEPS, "attention is frozen"),
        ({"distinct_captions": 0.01}, 1, "nearly all the same"),
    ],
)
def test_each_sign_of_collapse_is_reported_once(
    figures: dict[str, float], step: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    captions: dict[int | str, str] = dict.fromkeys(range(1000), "a dog")
    found = Validation({**ALIVE, "CIDEr": 0.1, **figures}, captions, {}, (1, 1), [])
    warned: set[str] = set()
    for epoch in (1, 2):
        print_validation(epoch, step, found, Config(), warned)
    lines = capsys.readouterr().err
    assert "epoch 2 (beam 5): CIDEr 0.1000" in lines
    assert lines.count("warning: ") == (1 if said else 0)
    assert said in lines
