"""Does attention matter to the words? Replace what the model attends to and score the words again.

After Jain and Wallace 2019, "Attention is not Explanation", and Petsiuk et al. 2018, "RISE", 4.1.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from captioner.evaluation.intervals import interval_of_mean
from captioner.generation import Hypothesis, force_decode
from captioner.models.attention.attention import Attention, Select
from captioner.models.decoders.base import Decoder
from captioner.types import AttentionOutput, Grid, hard_attention_mode

REPLACEMENTS = ("frozen", "random_cell", "uniform")
DELETION = "deleted_in_grid"
DELETED_SHARE = 0.2


class ReplacedSelect(nn.Module):
    """The select stage of an attention, with other weights than the model's for each word.

    `frozen` keeps the first word's weights (of hard attention, its cell), `random_cell` takes one
    random cell a word, `uniform` the mean of all.
    """

    def __init__(self, select: Select, generator: torch.Generator) -> None:
        super().__init__()
        self.select, self.generator = select, generator
        self.kind = ""
        self.first: Tensor | None = None

    def forward(self, scores: Tensor, *arguments: Any) -> AttentionOutput:
        """Return the attention for scores [B, K, L], with the replaced weights."""
        if self.kind == "uniform":
            weights = torch.full_like(scores, 1 / scores.shape[-1])
        elif self.kind == "random_cell":
            cells = torch.randint(scores.shape[-1], scores.shape[:-1], generator=self.generator)
            weights = one_hot(cells, scores.shape[-1]).to(scores)
        else:
            if self.first is None:
                own: AttentionOutput = self.select(scores, *arguments)
                self.first = own.weights
                if own.cells is not None:
                    self.first = one_hot(own.cells, scores.shape[-1]).to(scores)
            weights = self.first
        # Scores whose softmax these weights are: the stage then takes the expectation over them.
        as_scores = weights.log() * self.select.config.temperature
        with hard_attention_mode("expectation"):
            return self.select(as_scores, *arguments)


class AttentionMeasure:
    """Measures what captions lose when the attention or the attended cells are taken away."""

    def __init__(self, decoder: Decoder, *, seed: int = 0) -> None:
        self.decoder = decoder
        self.numpy_generator = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        self.replaced, self.selects = copy.deepcopy(decoder), []
        for module in self.replaced.modules():
            if isinstance(module, Attention):
                self.selects.append(ReplacedSelect(module.select, generator))
                module.add_module("select", self.selects[-1])

    def __call__(self, grid: Grid, captions: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
        """Measure captions of one image.

        Args:
            captions: Word indices of its reference captions, each at least one word.

        Returns:
            By name the losses of log-probability in nats, one for each word of all captions
            ([words]); `NAME_control` with random cells in place of the attended ones; and
            `cell_changes` with 0 or 1 for each word but a caption's first.
        """
        own = force_decode(self.decoder, grid, [captions])[0]
        before = np.concatenate([hypothesis.log_probs for hypothesis in own])

        def loss(found: Sequence[Hypothesis]) -> np.ndarray:
            return before - np.concatenate([hypothesis.log_probs for hypothesis in found])

        losses: dict[str, np.ndarray] = {}
        for kind in REPLACEMENTS:
            for select in self.selects:
                select.kind, select.first = kind, None
            losses[kind] = loss(force_decode(self.replaced, grid, [captions])[0])
        attended = [_most_attended(hypothesis.maps.sum(0)) for hypothesis in own]
        at_random = [_most_attended(self.numpy_generator.random(len(a))) for a in attended]
        for name, removed in ((DELETION, attended), (f"{DELETION}_control", at_random)):
            deleted = _without_cells(grid, np.stack(removed))
            found = force_decode(self.decoder, deleted, [[tokens] for tokens in captions])
            losses[name] = loss([hypothesis for (hypothesis,) in found])
        likeliest = [hypothesis.maps.argmax(-1) for hypothesis in own]
        changes = [(cells[1:] != cells[:-1]).astype(float) for cells in likeliest]
        losses["cell_changes"] = np.concatenate(changes)
        return losses


def _most_attended(attention: np.ndarray) -> np.ndarray:
    """Return bool [L], the DELETED_SHARE of the cells [L] with the most attention."""
    removed = np.zeros(len(attention), bool)
    count = max(1, round(DELETED_SHARE * len(attention)))
    removed[np.argsort(-attention, kind="stable")[:count]] = True
    return removed


def _without_cells(grid: Grid, removed: np.ndarray) -> Grid:
    """Return N grids, of one image with its mean in place of removed cells, bool [N, L]."""
    gone = torch.from_numpy(removed).to(grid.features.device)[..., None]

    def deleted(features: Tensor) -> Tensor:
        return torch.where(gone, features.mean(1, keepdim=True), features)

    local = None if grid.local is None else deleted(grid.local)
    return replace(grid, features=deleted(grid.features), local=local)


def attention_summary(images: Sequence[Mapping[str, np.ndarray]]) -> dict[str, dict[str, Any]]:
    """Return by name the mean over words, `value`, and its 95 % bootstrap `interval` over images.

    The deletion has `control` and `control_interval`, too, those of as many random cells.
    """
    summary: dict[str, dict[str, Any]] = {}
    for name in (*REPLACEMENTS, DELETION, "cell_changes"):
        for kind, value, interval in (
            (name, "value", "interval"),
            (f"{name}_control", "control", "control_interval"),
        ):
            if groups := [image[kind].tolist() for image in images if len(image.get(kind, ()))]:
                figures = summary.setdefault(name, {})
                figures[value] = float(np.concatenate(groups).mean())
                figures[interval] = interval_of_mean(groups)
    return summary
