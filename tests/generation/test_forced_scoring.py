"""Scoring a caption that somebody brings, against a plain loop over steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import plain
import pytest
import torch
from test_search import END, START, UNKNOWN, L, random_decoder, random_grid

from captioner.generation import force_decode


@pytest.mark.parametrize("tokens", [[4], [4, 5, 6, 7, 8, 4], [UNKNOWN, 5, UNKNOWN]], ids=str)
@pytest.mark.parametrize("gate", ["none", "vector"])
@torch.no_grad()
def test_scoring_a_caption_equals_a_plain_loop_over_the_steps(gate: Any, tokens: list[int]) -> None:
    decoder, photo = random_decoder(0, gate=gate), random_grid(1)
    ((found,),) = force_decode(decoder, photo, [[tokens]])
    memory = decoder.prepare(photo)
    state = decoder.start(memory)
    total = 0.0
    for step, (read, written) in enumerate(zip([START, *tokens], [*tokens, END], strict=True)):
        logits, attended, state = decoder.step(torch.tensor([[read]]), state, memory)
        log_prob = plain.log_softmax(logits[0, 0].tolist())[written]
        total += log_prob
        if written == END:
            assert found.end_log_prob == pytest.approx(log_prob, abs=1e-5)
            continue
        assert found.log_probs[step] == pytest.approx(log_prob, abs=1e-5)
        np.testing.assert_allclose(found.maps[step], attended.weights[0, 0], atol=1e-6)
        if gate == "none":
            assert found.beta is None
        else:
            assert found.beta[step] == pytest.approx(attended.beta.item(), abs=1e-6)
    assert found.score == pytest.approx(total, abs=1e-4)
    assert found.tokens == tokens
    assert found.log_probs.shape == (len(tokens),)
    assert found.maps.shape == (len(tokens), L)


def test_a_caption_that_was_cut_off_has_no_end() -> None:
    decoder, photo = random_decoder(0, gate="vector"), random_grid(1)
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
