"""Validation: captions written freely, by the search that users get, of every readable photo."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from captioner.captioner import Captioner
from captioner.config import DecodingConfig
from captioner.config.settings import Config
from captioner.data.feature_cache import build_feature_cache
from captioner.data.splits import CaptionedImage
from captioner.data.transforms import ImageTransform
from captioner.evaluation.metrics import quick_scores
from captioner.generation import Hypothesis
from captioner.models.decoders.base import TeacherForcingOutput
from captioner.training import validation
from captioner.training.cross_entropy import attention_statistics
from captioner.training.validation import (
    EARLY_STEPS,
    Validation,
    ValidationData,
    generated_attention_statistics,
    print_validation,
    validate,
)


@pytest.fixture
def photos(tmp_path: Path) -> list[CaptionedImage]:
    return tiny.read_split(
        format="table", root=tiny.draw_table(tmp_path, train=8), split="train"
    ).images


@pytest.fixture(scope="module")
def captioner() -> Captioner:
    return Captioner(*tiny.model())


def evaluate(captioner: Captioner, photos: list[CaptionedImage], **changed: Any) -> Validation:
    decoding: dict[str, Any] = {"beam_size": 3, "max_words": 12, "length_penalty": 0.0}
    fields = {field.name for field in dataclasses.fields(DecodingConfig)}
    decoding |= {name: changed.pop(name) for name in fields & changed.keys()}
    sources = changed.pop("sources", {"photos": photos})
    return validate(
        captioner.model,
        captioner.vocabulary,
        ValidationData(sources, captioner.transform, **changed),
        device=torch.device("cpu"),
        decoding=replace(captioner.config.decoding, **decoding),
    )


def test_the_captions_are_those_that_a_user_gets(
    captioner: Captioner, photos: list[CaptionedImage]
) -> None:
    bound = {"stop": "bound", "length_penalty": 2.0}
    for changed in ({}, {"beam_size": 1}, {"max_words": 3}, {"length_penalty": 1.0}, bound):
        options = {"beam_size": 3, "max_words": 12, "length_penalty": 0.0, **changed}
        expected = {
            photo.image_id: captioner.caption(photo.path, **options).text  # type: ignore[arg-type]
            for photo in photos
        }
        assert evaluate(captioner, photos, **changed).captions == expected


def test_the_figures_are_the_metrics_and_the_diagnostics(
    captioner: Captioner, photos: list[CaptionedImage]
) -> None:
    found = evaluate(captioner, photos)
    references = {photo.image_id: photo.captions for photo in photos}
    for name, value in quick_scores(found.captions, references).items():
        assert found.figures[name] == value
    texts = list(found.captions.values())
    assert found.figures["distinct_captions"] == len(set(texts)) / len(texts) < 1
    mean = sum(len(text.split()) for text in texts) / len(texts)
    assert found.figures["words"] == pytest.approx(mean)
    human = [captioner.score(photo.path, photo.captions[0]) for photo in photos]
    log_prob = sum(each.log_probs.sum() + each.end_log_prob for each in human)
    expected = -log_prob / sum(len(each.words) + 1 for each in human)
    assert found.figures["cross_entropy"] == pytest.approx(expected)
    cut = [captioner.score(p.path, " ".join(p.captions[0].split()[:2])) for p in photos]
    expected = -sum(each.log_probs.sum() + each.end_log_prob for each in cut) / (3 * len(cut))
    short = evaluate(captioner, photos, max_words=3)
    assert short.figures["cross_entropy"] == pytest.approx(expected), "two words and the end"
    assert 0 < found.figures["attention_entropy"] <= 1
    assert 0 < found.figures["beta"] < 1
    assert all(type(value) is float for value in found.figures.values())
    assert found.grid_shape == (2, 3)


@pytest.mark.parametrize("batch", [1, 5])
def test_no_photo_s_caption_depends_on_the_batch(
    captioner: Captioner, photos: list[CaptionedImage], monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    expected = evaluate(captioner, photos)
    monkeypatch.setattr(validation, "BATCH_SIZE", batch)
    found = evaluate(captioner, photos)
    assert found.captions == expected.captions
    assert found.figures == pytest.approx(expected.figures, abs=1e-5)


def test_the_model_is_validated_without_dropout_and_left_without_a_trace(
    captioner: Captioner, photos: list[CaptionedImage]
) -> None:
    expected = evaluate(captioner, photos).captions
    before = {name: value.clone() for name, value in captioner.model.state_dict().items()}
    generator = torch.get_rng_state()
    captioner.model.train()
    try:
        assert evaluate(captioner, photos).captions == expected
    finally:
        captioner.model.eval()
    assert torch.equal(torch.get_rng_state(), generator)
    after = captioner.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_an_unreadable_photo_is_left_out_with_its_references(
    captioner: Captioner, photos: list[CaptionedImage]
) -> None:
    expected = evaluate(captioner, photos[:2] + photos[3:])
    photos[2].path.write_bytes(b"damaged")
    found = evaluate(captioner, photos)
    assert photos[2].image_id not in found.captions
    assert found.captions == expected.captions
    assert found.figures == pytest.approx(expected.figures, abs=1e-6)


def test_from_a_cache_the_captions_are_the_same(
    captioner: Captioner, photos: list[CaptionedImage], tmp_path: Path
) -> None:
    photos[1].path.write_bytes(b"damaged")
    encoder = captioner.model.encoder
    cache = build_feature_cache(
        tmp_path / "cache",
        [photo.path for photo in photos],
        ImageTransform(**vars(captioner.config.preprocess)),
        encoder.frozen_features,
        fingerprint=encoder.backbone.fingerprint(encoder.frozen_stages),
        views=1,
        seed=0,
        workers=0,
    )
    expected = evaluate(captioner, photos)
    found = evaluate(captioner, photos, cache=cache)
    assert found.captions == expected.captions
    assert photos[1].image_id not in found.captions


def test_several_sources_have_figures_each_and_their_mean_decides(
    captioner: Captioner, photos: list[CaptionedImage]
) -> None:
    sources = {"first": photos[:4], "second": photos[4:]}
    assert len(photos) == 8
    found = evaluate(captioner, photos, sources=sources)
    alone = [evaluate(captioner, photos[:4]), evaluate(captioner, photos[4:])]
    assert found.captions == alone[0].captions | alone[1].captions
    for name in ("CIDEr", "Bleu_4", "ROUGE_L"):
        each = [of.figures[name] for of in alone]
        assert found.figures[f"first/{name}"] == pytest.approx(each[0])
        assert found.figures[f"second/{name}"] == pytest.approx(each[1])
        assert found.figures[name] == pytest.approx(sum(each) / 2), "whatever their sizes"
    assert found.figures["first/ROUGE_L"] != found.figures["second/ROUGE_L"]
    # Of all captions, as with one source.
    together = evaluate(captioner, photos)
    for name in ("distinct_captions", "words", "attention_entropy"):
        assert found.figures[name] == pytest.approx(together.figures[name])


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


ALIVE = {"attention_entropy": 0.8, "attention_change": 0.3}
ALIVE |= {"distinct_captions": 0.5, "cross_entropy": 3.0}


@pytest.mark.parametrize(
    ("figures", "step", "said"),
    [
        ({}, EARLY_STEPS, ""),
        ({"attention_entropy": 0.999}, EARLY_STEPS, "attention is flat"),
        ({"attention_entropy": 0.999}, EARLY_STEPS - 1, ""),  # before attention could move
        ({"attention_change": 0.001}, EARLY_STEPS, "attention is flat, or its maps hardly change"),
    ],
)
def test_attention_that_says_nothing_is_warned_of(
    figures: dict[str, float], step: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_validation(1, step, {**ALIVE, "CIDEr": 0.1, **figures}, Config())
    first, *warnings = capsys.readouterr().err.splitlines()
    assert first.startswith("epoch 1 (beam 5): CIDEr 0.1000")
    assert len(warnings) == bool(said)
    assert all(line.startswith(said) for line in warnings)
