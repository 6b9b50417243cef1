"""The weight's gradient at once is the sum of those of all steps."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from captioner.runtime import linear as linear_module
from captioner.runtime.linear import Linear, StepLinear, gradients_at_once, pack_linear_layers


class Loop(nn.Module):
    """An LSTM-like loop that calls two layers at every step, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.forth = StepLinear(5, 7)
        self.back = StepLinear(7, 5, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        total = rows.new_zeros(())
        for step in range(4):
            rows = torch.tanh(self.back(torch.tanh(self.forth(rows[: len(rows) - step]))))
            total = total + self.forth(rows).square().mean()
        return total


def gradients(loop: Loop, rows: Tensor, *, at_once: bool) -> list[Tensor]:
    loop.zero_grad()
    rows = rows.clone().requires_grad_()
    with gradients_at_once(loop) if at_once else nullcontext():
        loss = loop(rows)
    loss.backward()
    found = [rows.grad, *(parameter.grad for parameter in loop.parameters())]
    assert all(gradient is not None for gradient in found)
    return [gradient for gradient in found if gradient is not None]


def test_at_once_is_the_sum_of_the_steps() -> None:
    torch.manual_seed(0)
    loop, rows = Loop().double(), torch.randn(8, 3, 5, dtype=torch.float64)
    plain = gradients(loop, rows, at_once=False)
    at_once = gradients(loop, rows, at_once=True)
    for one, other in zip(plain, at_once, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        assert one.abs().max() > 0


def test_gradients_add_up_over_backward_passes() -> None:
    torch.manual_seed(0)
    loop, rows = Loop().double(), torch.randn(8, 5, dtype=torch.float64)
    once = gradients(loop, rows, at_once=True)[1].clone()
    with gradients_at_once(loop):
        loss = loop(rows)
    loss.backward()
    torch.testing.assert_close(loop.forth.weight.grad, 2 * once)


def test_under_autocast_the_gradient_has_the_weights_type() -> None:
    torch.manual_seed(0)
    loop, rows = Loop(), torch.randn(8, 5)
    exact = gradients(loop, rows, at_once=False)
    with torch.autocast("cpu", torch.bfloat16):
        rough = gradients(loop, rows, at_once=True)
    assert all(gradient.dtype == torch.float32 for gradient in rough)
    for one, other in zip(exact, rough, strict=True):
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("frozen", [False, True])
def test_without_gradients_it_is_a_plain_layer(frozen: bool) -> None:
    loop = Loop().requires_grad_(not frozen)
    rows = torch.randn(4, 5)
    with torch.set_grad_enabled(frozen), gradients_at_once(loop):
        assert not loop(rows).requires_grad


def test_an_error_inside_leaves_plain_layers() -> None:
    loop = Loop()
    with pytest.raises(RuntimeError), gradients_at_once(loop):
        raise RuntimeError
    assert loop(torch.randn(4, 5)).requires_grad


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")
@pytest.mark.parametrize("bias", [False, True])
def test_onednn_gives_the_same_outputs_and_gradients(
    monkeypatch: pytest.MonkeyPatch, bias: bool
) -> None:
    torch.manual_seed(0)
    layer = Linear(6, 9, bias=bias)
    rows = torch.randn(4, 6, 3).transpose(1, 2).requires_grad_()  # not contiguous

    def outcome() -> list[Tensor]:
        layer.zero_grad()
        rows.grad = None
        outputs = layer(rows)
        outputs.square().sum().backward()
        found = [outputs, rows.grad, *(p.grad for p in layer.parameters())]
        return [value.detach().clone() for value in found if value is not None]

    plain = outcome()
    by_onednn = []

    def counted(*arguments: Tensor) -> Tensor:
        by_onednn.append(arguments)
        return onednn(*arguments)

    onednn = torch.ops.aten.mkldnn_linear
    monkeypatch.setattr(torch.ops.aten, "mkldnn_linear", counted)
    monkeypatch.setattr(linear_module, "_blas_is_slow", lambda: True)
    outcome()
    assert not by_onednn, "not worth it"
    monkeypatch.setattr(linear_module, "WORTH_IT", 0)
    theirs = outcome()
    assert len(by_onednn) == 1
    assert len(theirs) == len(plain) == (4 if bias else 3)
    for one, other in zip(plain, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    layer.double()(rows.double())
    with torch.autocast("cpu", torch.bfloat16):
        layer.float()(rows)
    assert len(by_onednn) == 1, "float32 alone"


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_packed_weights_give_the_same(monkeypatch: pytest.MonkeyPatch, bias: bool) -> None:
    monkeypatch.setattr(linear_module, "_blas_is_slow", lambda: True)
    torch.manual_seed(0)
    layer = Linear(6, 9, bias=bias)
    rows = torch.randn(4, 6, 3).transpose(1, 2)  # not contiguous
    expected = layer(rows)
    pack_linear_layers(nn.Sequential(layer))
    read = []
    multiply = linear_module._by_onednn
    monkeypatch.setattr(
        linear_module,
        "_by_onednn",
        lambda rows, weight, bias: read.append(weight.is_mkldnn) or multiply(rows, weight, bias),
    )
    for given in (rows, rows[:1], rows[0], rows[:0]):
        torch.testing.assert_close(
            layer(given), expected[: len(given)] if given.dim() == 3 else expected[0]
        )
    assert read == [True] * 4
    torch.testing.assert_close(copy.deepcopy(layer)(rows), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(rows).dtype == torch.bfloat16
    with torch.enable_grad():
        assert layer(rows).requires_grad
    assert read == [True] * 5, "the copy's is packed too"
    layer.weight.mul_(2)
    torch.testing.assert_close(
        layer(rows), torch.nn.functional.linear(rows, layer.weight, layer.bias)
    )
    other = nn.Parameter(torch.randn(9, 6))
    layer.weight = other
    torch.testing.assert_close(layer(rows), torch.nn.functional.linear(rows, other, layer.bias))
    assert read == [True] * 5
    assert copy.deepcopy(layer.double())(rows.double()).dtype == torch.double
