"""Random numbers as a function of a seed and a position, so that runs resume on other devices.

Hashes of a row's seed (Salmon et al., 2011; SplitMix64, Steele et al., 2014); int64 wraps around.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STEP = -7046029254386353131  # 0x9e3779b97f4a7c15, the odd number nearest to 2^64 / golden ratio
_FACTORS = (-4658895280553007687, -7723592293110705685)  # 0xbf58476d1ce4e5b9, 0x94d049bb133111eb


def child_seeds(seeds: Tensor, number: Tensor | int) -> Tensor:
    """Return a new seed for each seed and number, which broadcast against each other."""
    values = seeds + (torch.as_tensor(number) + 1) * _STEP
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        values = (values ^ _shifted(values, shift)) * factor
    return values ^ _shifted(values, 31)


def seed_of(*numbers: int) -> int:
    """Return a seed that is a function of numbers, such as (seed, epoch, batch)."""
    seed = torch.zeros((), dtype=torch.long)
    for number in numbers:
        seed = child_seeds(seed, number)
    return int(seed)


def uniform(seeds: Tensor, count: int) -> Tensor:
    """Return `count` numbers in (0, 1) for each seed, float32 [..., count]."""
    values = child_seeds(seeds.unsqueeze(-1), torch.arange(count, device=seeds.device))
    return (_shifted(values, 41) + 0.5) * 2.0**-23  # exact, so that none is rounded to 1


def draw_words(seeds: Tensor, shares: Tensor, position: int) -> Tensor:
    """Draw words [B, samples] by a seed for each image [B], from probabilities [B, samples, V]."""
    sums = shares.double().cumsum(-1)
    quantile = uniform(child_seeds(seeds, position), shares.shape[1]).double()
    passed = quantile.unsqueeze(-1) * sums[..., -1:]  # below the last sum: quantiles are below 1
    return (sums <= passed).sum(-1)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shift to the right and fill with zeros, as of unsigned numbers."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
