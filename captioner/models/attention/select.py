"""Soft attention mixes the cells; hard attention samples one."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.config import AttentionConfig
from captioner.models.attention.attention import Select
from captioner.models.attention.mode import given_mode
from captioner.runtime.draws import uniform
from captioner.types import AttentionOutput


class SoftSelect(Select):
    """Deterministic soft attention: the expectation of the context (equations 5, 6 and 13)."""

    def forward(
        self,
        scores: Tensor,
        values: Tensor,
        use_expectation: Tensor | None = None,
        seeds: Tensor | None = None,
    ) -> AttentionOutput:
        _, weights, entropy = self.distribution(scores)
        context = torch.bmm(weights.to(values.dtype), values)
        return AttentionOutput(context, weights, entropy, log_prob=torch.zeros_like(entropy))


class HardSelect(Select):
    """Stochastic hard attention: the context is one cell, s_t ~ Multinoulli(alpha_t) (section 4.1).

    In training the cell is sampled, and no gradient passes through the sample: the scores learn
    from `log_prob` and `entropy` in the loss (equation 12). With probability `semi_sampling` an
    image takes the expectation in that batch, as section 4.1 says "for a given image" (the
    original code draws once per batch, and then leaves the attention without a gradient; here it
    has soft attention's). In evaluation mode, `at_test` takes the likeliest cell (`argmax`), mixes
    all of them as soft attention does (`expectation`), or samples as in training (`sample`).
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.semi_sampling = config.semi_sampling
        self.at_test = config.at_test

    def draw_expectation(
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
        use_expectation: Tensor | None = None,
        seeds: Tensor | None = None,
    ) -> AttentionOutput:
        log_map, weights, entropy = self.distribution(scores)
        mode = "sample" if self.training else given_mode.get() or self.at_test
        mixing, log_prob, cells = weights, torch.zeros_like(entropy), None
        if mode != "expectation":
            cells = _sample(log_map, seeds) if mode == "sample" else log_map.argmax(-1)  # [B, K]
            mixing = torch.zeros_like(weights).scatter_(-1, cells.unsqueeze(-1), 1.0)
            log_prob = log_map.gather(-1, cells.unsqueeze(-1)).squeeze(-1)
            if use_expectation is not None:
                mixing = torch.where(use_expectation.view(-1, 1, 1), weights, mixing)
                log_prob = log_prob.masked_fill(use_expectation.unsqueeze(-1), 0.0)
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
