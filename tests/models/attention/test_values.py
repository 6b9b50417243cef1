"""Mixed at once or step by step, the gradients are the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from captioner.models.attention.values import Values


def looks(vectors: Tensor, maps: list[Tensor], *, at_once: bool) -> tuple[Tensor, list[Tensor]]:
    """A loop whose every look depends on the one before; its loss, and the gradients."""
    vectors = vectors.detach().clone().requires_grad_()
    maps = [each.detach().clone().requires_grad_() for each in maps]
    values = Values(vectors, at_once=at_once)
    context = torch.zeros_like(vectors[:, :1])
    for scores in maps:
        context = torch.tanh(
            values.mix(torch.softmax(scores * (1 + context.sum(-1, keepdim=True)), -1))
        )
    loss = context.square().sum()
    gradients = torch.autograd.grad(loss, [vectors, *maps])
    return loss, list(gradients)


@pytest.mark.parametrize("looks_a_step", [1, 3])
def test_the_gradient_at_once_is_that_of_the_steps(looks_a_step: int) -> None:
    torch.manual_seed(0)
    vectors = torch.randn(2, 5, 4, dtype=torch.float64)
    maps = [torch.randn(2, looks_a_step, 5, dtype=torch.float64) for _ in range(6)]
    loss, expected = looks(vectors, maps, at_once=False)
    same, found = looks(vectors, maps, at_once=True)
    assert torch.equal(loss, same)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
        assert one.abs().max() > 0


def test_under_autocast_it_mixes_in_bfloat16_and_its_gradient_has_the_vectors_type() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(2, 5, 4, requires_grad=True)
    maps = torch.softmax(torch.randn(2, 1, 5), -1)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = Values(vectors, at_once=True).mix(maps)
    assert mixed.dtype == torch.bfloat16
    mixed.float().sum().backward()
    assert vectors.grad is not None
    assert vectors.grad.dtype == torch.float32
    torch.testing.assert_close(
        vectors.grad, maps.transpose(1, 2).expand(-1, -1, 4), rtol=0.02, atol=0.01
    )


def test_vectors_that_take_no_gradient_are_mixed_alike() -> None:
    vectors, maps = torch.randn(2, 5, 4), torch.softmax(torch.randn(2, 1, 5), -1)
    mixed = Values(vectors, at_once=True).mix(maps)
    assert not mixed.requires_grad
    assert torch.equal(mixed, torch.bmm(maps, vectors))
