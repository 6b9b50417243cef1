"""Scoring a caption that somebody brings, against a plain loop over steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from forced import force_decode_one
from torch import nn

from captioner.config import AttentionConfig, DecoderConfig
from captioner.generation import force_decode
from captioner.models.attention.attention import AdditiveScore, Attention, GlobalWindow, SoftSelect
from captioner.models.decoders.lstm import LSTMDecoder
from captioner.types import Grid

START, END, UNKNOWN = 1, 2, 3
V, L, D, H = 9, 6, 5, 8


def random_decoder(**settings: Any) -> LSTMDecoder:
    torch.manual_seed(0)
    attention = Attention(
        AdditiveScore(AttentionConfig(dim=6), query_dim=H, feature_dim=D),
        GlobalWindow(AttentionConfig(), query_dim=H),
        SoftSelect(AttentionConfig()),
    )
    config = DecoderConfig(hidden_dim=H, embed_dim=7, **settings)
    decoder = LSTMDecoder(config, lambda _=None: attention, vocabulary_size=V, feature_dim=D)
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.8)
    return decoder.eval()


def random_photo(seed: int = 1) -> Grid:
    generator = torch.Generator().manual_seed(seed)
    return Grid(torch.randn(1, L, D, generator=generator), 2, 3)


@pytest.mark.parametrize("tokens", [[4], [4, 5, 6, 7, 8, 4], [UNKNOWN, 5, UNKNOWN]], ids=str)
@pytest.mark.parametrize("gate", ["none", "vector"])
@torch.no_grad()
def test_scoring_a_caption_equals_a_plain_loop_over_the_steps(gate: Any, tokens: list[int]) -> None:
    decoder, photo = random_decoder(gate=gate), random_photo()
    found = force_decode_one(decoder, photo, tokens)
    memory = decoder.prepare(photo)
    state = decoder.start(memory)
    total = 0.0
    for step, (read, written) in enumerate(zip([START, *tokens], [*tokens, END], strict=True)):
        logits, attended, state = decoder.step(torch.tensor([[read]]), state, memory)
        values = logits[0, 0].double().tolist()
        log_prob = values[written] - math.log(sum(math.exp(value) for value in values))
        total += log_prob
        if written == END:
            assert found.end_log_prob == pytest.approx(log_prob, abs=1e-5)
            continue
        assert found.log_probs[step] == pytest.approx(log_prob, abs=1e-5)
        np.testing.assert_allclose(found.maps[step], attended.weights[0, 0], atol=1e-6)
        if gate == "none":
            assert found.beta is None
        else:
            assert found.beta is not None
            assert found.beta[step] == pytest.approx(attended.beta.item(), abs=1e-6)
    assert found.score == pytest.approx(total, abs=1e-4)
    assert found.tokens == tokens
    assert found.log_probs.shape == (len(tokens),)
    assert found.maps.shape == (len(tokens), L)


def test_several_photos_are_read_as_each_alone() -> None:
    decoder, photos = random_decoder(), [random_photo(1), random_photo(2)]
    together = Grid(torch.cat([photo.features for photo in photos]), 2, 3)
    of_images = force_decode(decoder, together, [[[4, 5], [4, 5]]] * 2)
    found = [hypothesis for image in of_images for hypothesis in image]
    assert len(found) == 4
    for index, hypothesis in enumerate(found):
        alone = force_decode_one(decoder, photos[index // 2], [4, 5])
        assert hypothesis.score == pytest.approx(alone.score, abs=1e-5)
        assert hypothesis.end_log_prob == pytest.approx(alone.end_log_prob, abs=1e-5)
        np.testing.assert_allclose(hypothesis.maps, alone.maps, atol=1e-6)


def test_a_caption_that_was_cut_off_has_no_end() -> None:
    decoder, photo = random_decoder(gate="vector"), random_photo()
    captions = [[[4, 5, 6], [7, 8]]]
    (ended,) = force_decode(decoder, photo, captions)
    (found,) = force_decode(decoder, photo, captions, max_words=3)
    assert found[0].end_log_prob is None
    assert found[0].score == pytest.approx(ended[0].log_probs.sum(), abs=1e-5)
    assert found[1].end_log_prob == pytest.approx(ended[1].end_log_prob, abs=1e-5)
    assert found[1].score == pytest.approx(ended[1].score, abs=1e-5)
    for one, other in zip(found, ended, strict=True):
        assert one.tokens == other.tokens
        for name in ("log_probs", "maps", "beta"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-6)
