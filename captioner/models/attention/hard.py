"""Hard attention: one cell a word."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.models.attention.attention import Select
from captioner.runtime.draws import uniform
from captioner.types import AttentionOutput, given_mode


class HardSelect(Select):
    """Stochastic hard attention: the context is one cell, s_t ~ Multinoulli(alpha_t) (section 4.1).

    In training the cell is sampled, and the scores learn from `log_prob` and `entropy` in the loss
    (equation 12). With probability `semi_sampling` an image takes the expectation in that batch
    (section 4.1; the original code draws once per batch, and then gives the attention no gradient).
    In evaluation mode, `at_test` chooses between `argmax`, `expectation` and `sample`.
    """

    def forward(
        self,
        scores: Tensor,
        values: Tensor,
        use_expectation: Tensor | None = None,
        seeds: Tensor | None = None,
    ) -> AttentionOutput:
        log_map, weights, entropy = self.distribution(scores)
        mode = "sample" if self.training else given_mode.get() or self.config.at_test
        mixing, log_prob, cells = weights, torch.zeros_like(entropy), None
        if mode != "expectation":
            cells = _sample(log_map, seeds) if mode == "sample" else log_map.argmax(-1)  # [B, K]
            mixing = torch.zeros_like(weights).scatter_(-1, cells.unsqueeze(-1), 1.0)
            log_prob = log_map.gather(-1, cells.unsqueeze(-1)).squeeze(-1)
            if use_expectation is not None:
                of_image = use_expectation.view(-1, *[1] * (log_prob.dim() - 1))
                mixing = torch.where(of_image.unsqueeze(-1), weights, mixing)
                log_prob = log_prob.masked_fill(of_image, 0.0)
        context = torch.matmul(mixing.to(values.dtype), values)  # not @: `shared_gradients`
        return AttentionOutput(context, weights, entropy, log_prob, cells=cells)


def _sample(log_map: Tensor, seeds: Tensor | None) -> Tensor:
    """Sample one cell of each map, [B, K, L] to [B, K]; seeds [B, K].

    torch.multinomial's method without its wait for the device: the first of exponential clocks.
    """
    if seeds is None:
        clock = torch.empty_like(log_map, requires_grad=False).exponential_()
    else:
        clock = -uniform(seeds, log_map.shape[-1]).to(log_map.dtype).log()
    return (log_map.detach() - clock.clamp_min(torch.finfo(clock.dtype).tiny).log()).argmax(-1)
