"""From scores to a context vector."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextvars import ContextVar
from typing import get_args

import torch
from torch import Tensor, nn

from captioner.config import HardAttentionMode
from captioner.errors import ConfigError
from captioner.models.attention.values import Values
from captioner.types import AttentionOutput

AtTest = HardAttentionMode

# A context's own, not a module's: a server's threads share the modules.
_asked: ContextVar[AtTest | None] = ContextVar("at_test", default=None)


class Select(nn.Module, ABC):
    """Makes a distribution of the scores, and a context of the distribution."""

    def expected(self, photos: int, device: torch.device) -> Tensor | None:
        """Photos [B] whose context is to be the expectation in this batch; None where all's are."""
        return None

    @abstractmethod
    def forward(
        self, scores: Tensor, values: Values, expected: Tensor | None = None
    ) -> AttentionOutput:
        """Scores [B, K, L], values of B photos and what `expected` gave to a AttentionOutput."""


class SoftSelect(Select):
    """Deterministic soft attention: the expectation of the context (equations 5, 6 and 13)."""

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(
        self, scores: Tensor, values: Values, expected: Tensor | None = None
    ) -> AttentionOutput:
        _, attention, entropy = _distribution(scores, self.temperature)
        return AttentionOutput(
            context=values.mix(attention),
            weights=attention,
            entropy=entropy,
            log_prob=torch.zeros_like(entropy),
        )


class HardSelect(Select):
    """Stochastic hard attention: the context is one cell, s_t ~ Multinoulli(alpha_t) (section 4.1).

    In training the cell is sampled. No gradient passes through the sample; what trains the scores
    is the AttentionOutput's `log_prob` and `entropy` in the loss (equation 12). With probability
    `semi_sampling` a photo takes the expectation instead, in that batch, as section 4.1 says "for a
    given image" (the original code draws once a batch, and leaves the attention without a gradient
    then; here it has soft attention's).

    At test time `argmax` looks at the likeliest cell, `expectation` mixes all as soft attention
    does, `sample` draws one as in training.
    """

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        semi_sampling: float = 0.5,
        at_test: AtTest = "argmax",
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.semi_sampling = semi_sampling
        self.at_test = at_test

    def expected(self, photos: int, device: torch.device) -> Tensor | None:
        if not self.training or self.semi_sampling == 0:
            return None
        return torch.rand(photos, device=device) < self.semi_sampling

    def forward(
        self, scores: Tensor, values: Values, expected: Tensor | None = None
    ) -> AttentionOutput:
        log_map, attention, entropy = _distribution(scores, self.temperature)
        how = "sample" if self.training else _asked.get() or self.at_test
        if how == "expectation":
            return AttentionOutput(
                values.mix(attention), attention, entropy, log_prob=torch.zeros_like(entropy)
            )
        cells = _sample(log_map) if how == "sample" else log_map.argmax(-1)  # [B, K]
        looked = torch.zeros_like(attention).scatter_(-1, cells.unsqueeze(-1), 1.0)
        log_prob = log_map.gather(-1, cells.unsqueeze(-1)).squeeze(-1)
        if expected is not None:
            looked = torch.where(expected.view(-1, 1, 1), attention, looked)
            log_prob = log_prob.masked_fill(expected.unsqueeze(-1), 0.0)
        return AttentionOutput(
            context=values.mix(looked),
            weights=attention,
            entropy=entropy,
            log_prob=log_prob,
            cells=cells,
        )


@contextlib.contextmanager
def looking(module: nn.Module, at_test: AtTest) -> Iterator[None]:
    """Within it, in this thread, hard attention of any module looks as `at_test` says.

    module: one that has hard attention; it is checked for that alone.

    Raises:
        ConfigError: the module has no hard attention, or there is no such way to look.
    """
    if not any(isinstance(part, HardSelect) for part in module.modules()):
        raise ConfigError(f"at_test: this model has no hard attention to look by {at_test}")
    if at_test not in get_args(AtTest):
        raise ConfigError(
            f"at_test: '{at_test}' is not accepted; use {', '.join(get_args(AtTest))}"
        )
    token = _asked.set(at_test)
    try:
        yield
    finally:
        _asked.reset(token)


def _distribution(scores: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Logarithm of the map, the map, its entropy."""
    if scores.dtype in (torch.bfloat16, torch.float16):
        scores = scores.float()  # maps sum to 1 under autocast too
    log_map = torch.log_softmax(scores if temperature == 1 else scores / temperature, dim=-1)
    attention = log_map.exp()
    # a cell outside the window has log 0, and adds nothing
    entropy = -(attention * log_map.masked_fill(attention == 0, 0.0)).sum(-1)
    return log_map, attention, entropy


def _sample(log_map: Tensor) -> Tensor:
    """One cell of each map: the first to ring of independent exponential clocks of rate alpha.

    As torch.multinomial, but without its wait for the device.
    """
    clock = torch.empty_like(log_map, requires_grad=False).exponential_()
    return (log_map.detach() - clock.clamp_min(torch.finfo(clock.dtype).tiny).log()).argmax(-1)
