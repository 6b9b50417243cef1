"""NumPy arrays are searched as tensors are."""

from __future__ import annotations

import numpy as np
import pytest

from captioner.generation.arrays import log_softmax, top_k_indices


@pytest.mark.parametrize("length", [7, 640, 1285, 9490])
@pytest.mark.parametrize("count", [1, 5, 7])
def test_the_largest_are_found_in_order(length: int, count: int) -> None:
    values = np.random.default_rng(length).normal(size=(4, length)).astype(np.float32)
    values[0, -1] = 9.0  # behind the last whole block
    values[1, : length - 8] = -np.inf
    expected = np.argsort(-values, axis=-1, kind="stable")[:, :count]
    assert top_k_indices(values, count).tolist() == expected.tolist()


def test_a_value_that_is_not_a_number_ranks_above_all() -> None:
    for length in (20, 2000):
        values = np.zeros((1, length), dtype=np.float32)
        values[0, 13] = np.nan
        assert top_k_indices(values, 2)[0, 0] == 13


def test_log_probabilities_of_extreme_logits_are_finite_and_sum_to_one() -> None:
    log_probs = log_softmax(np.array([[1e4, 0.0, -1e4], [3.0, 3.0, 3.0]], dtype=np.float32))
    np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1, rtol=1e-6)
    assert log_probs[0, 0] == 0
