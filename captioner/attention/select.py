"""From scores to a context vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from captioner.grid import Glimpse


class SoftSelect(nn.Module):
    """Deterministic soft attention: the expectation of the context (equations 5, 6 and 13)."""

    def forward(self, scores: Tensor, values: Tensor) -> Glimpse:
        """Scores [B, K, L] and values [B, L, D] to a Glimpse."""
        if scores.dtype in (torch.bfloat16, torch.float16):
            scores = scores.float()  # maps sum to 1 under autocast too
        log_map = torch.log_softmax(scores, dim=-1)
        attention = log_map.exp()
        # a cell outside the window has log 0, and adds nothing
        entropy = -(attention * log_map.masked_fill(attention == 0, 0.0)).sum(-1)
        context = torch.bmm(attention.to(values.dtype), values)  # [B, K, D]
        return Glimpse(
            context=context,
            map=attention,
            entropy=entropy,
            log_prob=torch.zeros_like(entropy),
        )
