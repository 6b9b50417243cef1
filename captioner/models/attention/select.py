"""Hard attention: the context is one sampled cell."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor

from captioner.config import AttentionConfig, HardAttentionMode
from captioner.models.attention.attention import Select
from captioner.runtime.draws import uniform
from captioner.types import AttentionOutput

# Per context and not per module: the threads of a server share the modules.
_mode: ContextVar[HardAttentionMode | None] = ContextVar("hard_attention_mode", default=None)


class HardSelect(Select):
    """Stochastic hard attention: the context is one cell, s_t ~ Multinoulli(alpha_t) (section 4.1).

    In training the cell is sampled, and no gradient passes through the sample: the scores learn
    from `log_prob` and `entropy` in the loss (equation 12). With probability `semi_sampling` an
    image takes the expectation in that batch, as section 4.1 says "for a given image" (the
    original code draws once per batch, and then leaves the attention without a gradient; here it
    has soft attention's). In evaluation mode, `at_test` takes the likeliest cell (`argmax`), mixes
    all of them as soft attention does (`expectation`), or samples as in training (`sample`).
    """

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        semi_sampling: float = 0.5,
        at_test: HardAttentionMode = "argmax",
    ) -> None:
        super().__init__(temperature=temperature)
        self.semi_sampling = semi_sampling
        self.at_test = at_test

    @classmethod
    def from_config(cls, config: AttentionConfig) -> HardSelect:
        return cls(
            temperature=config.temperature,
            semi_sampling=config.semi_sampling,
            at_test=config.at_test,
        )

    def draw_expected(
        self, images: int, device: torch.device, seeds: Tensor | None = None
    ) -> Tensor | None:
        if not self.training or self.semi_sampling == 0:
            return None
        if seeds is not None:
            return uniform(seeds, 1).squeeze(-1) < self.semi_sampling
        return torch.rand(images, device=device) < self.semi_sampling

    def forward(
        self,
        scores: Tensor,
        values: Tensor,
        expected: Tensor | None = None,
        seeds: Tensor | None = None,
    ) -> AttentionOutput:
        log_map, weights, entropy = self.distribution(scores)
        mode = "sample" if self.training else _mode.get() or self.at_test
        mixing, log_prob, cells = weights, torch.zeros_like(entropy), None
        if mode != "expectation":
            cells = _sample(log_map, seeds) if mode == "sample" else log_map.argmax(-1)  # [B, K]
            mixing = torch.zeros_like(weights).scatter_(-1, cells.unsqueeze(-1), 1.0)
            log_prob = log_map.gather(-1, cells.unsqueeze(-1)).squeeze(-1)
            if expected is not None:
                mixing = torch.where(expected.view(-1, 1, 1), weights, mixing)
                log_prob = log_prob.masked_fill(expected.unsqueeze(-1), 0.0)
        context = torch.bmm(mixing.to(values.dtype), values)
        return AttentionOutput(context, weights, entropy, log_prob, cells=cells)


def _sample(log_map: Tensor, seeds: Tensor | None) -> Tensor:
    """Sample one cell of each map, [B, K, L] to [B, K]; seeds [B, K].

    The first of independent exponential clocks with rates alpha: torch.multinomial's own method,
    but without its wait for the device.
    """
    if seeds is None:
        clock = torch.empty_like(log_map, requires_grad=False).exponential_()
    else:
        clock = -uniform(seeds, log_map.shape[-1]).to(log_map.dtype).log()
    return (log_map.detach() - clock.clamp_min(torch.finfo(clock.dtype).tiny).log()).argmax(-1)


@contextlib.contextmanager
def hard_attention_mode(at_test: HardAttentionMode) -> Iterator[None]:
    """Override `at_test` of all hard attention in evaluation mode, in this thread's context."""
    token = _mode.set(at_test)
    try:
        yield
    finally:
        _mode.reset(token)
