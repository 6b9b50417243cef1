"""Forced scoring: what the model thinks of a caption that it did not write."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from captioner.decoders.base import Decoder
from captioner.decoding.search import END, START, Hypothesis
from captioner.grid import Grid


@torch.inference_mode()
def score(decoder: Decoder, grid: Grid, tokens: Sequence[int]) -> Hypothesis:
    """The hypothesis that a search would have had for these words of one photo.

    tokens: T word indices, without start and end; grid: of one photo.
    """
    targets = torch.tensor([[*tokens, END]], device=grid.features.device)
    read = torch.tensor([[START, *tokens]], device=grid.features.device)
    lengths = torch.tensor([len(tokens) + 1], device=grid.features.device)
    forced = decoder(decoder.prepare(grid), read, lengths)
    log_probs = torch.log_softmax(forced.logits.float(), dim=-1)
    chosen = log_probs.gather(1, targets[0].unsqueeze(1)).squeeze(1).cpu().numpy()
    words = len(tokens)
    return Hypothesis(
        tokens=list(tokens),
        log_probs=chosen[:words],
        end_log_prob=float(chosen[words]),
        maps=forced.maps[0, :words].float().cpu().numpy(),
        beta=None if forced.beta is None else forced.beta[0, :words].float().cpu().numpy(),
        cells=None,
        score=float(chosen.sum()),
    )
