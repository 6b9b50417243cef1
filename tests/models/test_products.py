"""One gradient for all steps, and products by oneDNN, against autograd's own."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from captioner.models.products import onednn_products, shared_gradients
from captioner.runtime.device import onednn_is_faster

LINEAR = torch.ops.aten.mkldnn_linear.default


class Calls(TorchDispatchMode):
    """Context that notes each operation and the shape of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.found.append((func, tuple(getattr(result, "shape", ()))))
        return result


def unrolled(weight: Tensor, bias: Tensor, values: Tensor) -> Tensor:
    """Return a loss of five steps; one of three captions ends after two."""
    state = torch.ones(len(values), 1, len(weight), dtype=weight.dtype)
    total = weight.new_zeros(())
    for step in range(5):
        if step == 2:
            state, values = state[:2], values[:2]
        state = torch.tanh(functional.linear(state, weight, bias))
        weights = torch.softmax(state[..., : values.shape[1]], -1)
        state = state + torch.matmul(weights, values)
        total = total + state.square().sum()
    return total


def gradients(dtype: torch.dtype, outer: Any, inner: Any) -> tuple[list[Tensor], Calls]:
    """Return the loss of `unrolled` and its gradients, which two passes add up to, with the last calls."""
    draw = torch.Generator().manual_seed(0)
    shapes = (7, 7), (7,), (3, 4, 7)
    leaves = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    leaves = [leaf.to(dtype).requires_grad_() for leaf in leaves]
    for _ in range(2):
        with outer(), Calls() as calls:
            with inner():
                loss = unrolled(*leaves)
            loss.backward()
    return [loss.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)], calls


def test_one_gradient_is_the_sum_of_the_steps() -> None:
    expected, _ = gradients(torch.float64, nullcontext, nullcontext)
    shared, calls = gradients(torch.float64, nullcontext, shared_gradients)
    torch.testing.assert_close(shared, expected, rtol=1e-12, atol=1e-12)
    made = [func for func, shape in calls.found if shape == (7, 7) and "mm" in str(func)]
    assert len(made) == 1, "one product for the gradient of the weight"


def test_other_calls_of_the_two_functions_are_those_of_pytorch() -> None:
    draw = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(n, generator=draw).requires_grad_() for n in ((3, 3), 3))
    inputs = torch.randn(2, 1, 3, generator=draw)
    found = []
    for context in (nullcontext, shared_gradients):
        with context():
            product = torch.matmul(inputs, weight)
            layers = functional.linear(inputs, weight), functional.linear(inputs, weight, bias=bias)
        outputs = torch.cat([product, *layers])
        found.append([outputs, *torch.autograd.grad(outputs.square().sum(), [weight, bias])])
    torch.testing.assert_close(*found)


def test_nothing_is_kept_after_an_error_in_the_middle_of_a_backward_pass() -> None:
    def fail(gradient: Tensor) -> None:
        raise RuntimeError("out of memory")

    weight, state, alive = torch.ones(4, 4, requires_grad=True), torch.ones(2, 1, 4), []
    with shared_gradients():
        for step in range(3):
            state = torch.tanh(functional.linear(state, weight))
            alive.append(weakref.ref(state))
            if step == 0:
                state.register_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        state.sum().backward()
    del state
    assert not any(reference() is not None for reference in alive)


@pytest.mark.parametrize("inner", [nullcontext, shared_gradients])
def test_products_by_onednn_are_those_of_float64(inner: Any) -> None:
    expected, _ = gradients(torch.float64, nullcontext, nullcontext)
    found, calls = gradients(torch.float32, onednn_products, inner)
    assert any(func is LINEAR for func, _ in calls.found)
    assert not any("mm.default" in str(f) and shape == (7, 7) for f, shape in calls.found)
    torch.testing.assert_close([each.double() for each in found], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("select", ["soft", "hard"])
def test_a_captions_loss_and_gradients_are_the_same_by_onednn(select: str) -> None:
    found = []
    for context in (nullcontext, onednn_products):
        model = tiny.model(select=select)[0].eval()
        targets, lengths = torch.tensor([[4, 5, 2], [6, 2, 0]]), torch.tensor([3, 2])
        batch = tiny.captions(targets, lengths, image_index=torch.arange(2))
        with context(), Calls() as calls:
            grid = model.encoder(torch.ones(2, 3, 64, 96))
            loss = model(grid, batch).logits.square().sum()
            loss.backward()
        assert any(func is LINEAR for func, _ in calls.found) == (context is onednn_products)
        found.append([p.grad for p in model.decoder.parameters() if p.grad is not None])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_only_float32_of_several_outputs_goes_to_onednn() -> None:
    weight = torch.ones(4, 3)
    with onednn_products(), Calls() as calls:
        functional.linear(torch.ones(2, 3).double(), weight.double())
        functional.linear(torch.ones(2, 3), weight[:1])
        with torch.autocast("cpu", torch.bfloat16):
            functional.linear(torch.ones(2, 3), weight)
        assert not any(func is LINEAR for func, _ in calls.found)
        functional.linear(torch.ones(2, 3), weight, torch.ones(4))
        assert any(func is LINEAR for func, _ in calls.found)
    with Calls() as calls:
        functional.linear(torch.ones(2, 3), weight)
    assert not any(func is LINEAR for func, _ in calls.found)


def test_onednn_is_faster_where_mkl_uses_no_avx_512(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_faster(**processor: object) -> bool:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor, raising=False)
        return onednn_is_faster()

    assert is_faster(cpu_name="AMD EPYC", avx512_f=True)
    assert not is_faster(cpu_name="AMD EPYC", avx512_f=False)
    assert not is_faster(cpu_name="Intel Xeon", avx512_f=True)
    assert not is_faster()
