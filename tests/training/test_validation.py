"""Validation: captions written freely, by the search that users get, of every readable photo."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from captioner.captioner import Captioner
from captioner.config import DecodingConfig
from captioner.data.captioned import CaptionedImage
from captioner.data.feature_cache import build_feature_cache
from captioner.data.layouts import read_split
from captioner.data.transforms import image_transform
from captioner.evaluation.metrics import quick_scores
from captioner.training import validation
from captioner.training.validation import Validation, ValidationData, validate


@pytest.fixture
def photos(tmp_path: Path) -> list[CaptionedImage]:
    return read_split(format="table", root=tiny.draw_table(tmp_path), split="train").images


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
    assert 0 < found.figures["attention_entropy"] <= 1
    assert 0 < found.figures["beta"] < 1
    assert all(type(value) is float for value in found.figures.values())
    assert found.grid_shape == (2, 3)


@pytest.mark.parametrize("batch", [1, 5])
def test_no_photo_s_caption_depends_on_the_batch(
    captioner: Captioner,
    photos: list[CaptionedImage],
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
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
        image_transform(captioner.config.preprocess),
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


# --- several sources ------------------------------------------------------------------------------


def test_several_sources_have_figures_each_and_their_mean_decides(
    captioner: Captioner, photos: list[CaptionedImage]
) -> None:
    sources = {"first": photos[:4], "second": photos[4:]}
    assert len(photos) == 12
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
