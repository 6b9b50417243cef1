"""The order in which the words of a batch are packed."""

from __future__ import annotations

import pytest
import torch

from captioner.data.batch import pack_by_step


def plain_packed(rows: list[list[int]], lengths: list[int]) -> list[int]:
    return [
        rows[row][step]
        for step in range(max(lengths))
        for row in range(len(rows))
        if step < lengths[row]
    ]


@pytest.mark.parametrize("lengths", [[3, 1], [4, 4, 2, 1, 1], [1], [2, 2, 2], [5, 1, 1]])
def test_words_are_packed_step_after_step_as_in_a_plain_loop(lengths: list[int]) -> None:
    columns = max(lengths) + 2  # two columns beyond the longest caption
    values = torch.arange(len(lengths) * columns).reshape(len(lengths), columns)
    expected = plain_packed(values.tolist(), lengths)
    assert pack_by_step(values, torch.tensor(lengths)).tolist() == expected
    assert len(expected) == sum(lengths)


def test_vectors_are_packed_like_their_indices() -> None:
    lengths = torch.tensor([3, 2, 2])
    vectors = torch.randn(3, 4, 5)
    order = pack_by_step(torch.arange(12).reshape(3, 4), lengths)
    assert torch.equal(pack_by_step(vectors, lengths), vectors.reshape(12, 5)[order])
