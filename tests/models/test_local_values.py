"""`attention.values: local`: keys after the encoder's self-attention, values before it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from plain import loud

from captioner.config import AttentionConfig
from captioner.models.attention.attention import Attention
from captioner.models.build import build_model
from captioner.types import Grid

B, K, ROWS, COLUMNS, D, H, V = 2, 3, 2, 3, 8, 12, 10
L = ROWS * COLUMNS


def random_grid() -> Grid:
    generator = torch.Generator().manual_seed(1)
    features, other = torch.randn(2, B, L, D, dtype=torch.double, generator=generator)
    return Grid(features, ROWS, COLUMNS, local=other)


@pytest.mark.parametrize(("heads", "context_dim"), [(1, None), (2, 5)])
@pytest.mark.parametrize("score_name", ["additive", "location"])
@torch.no_grad()
def test_contexts_are_mixed_of_local_cells_by_the_maps_of_the_contextual_ones(
    score_name: Any, heads: int, context_dim: int | None
) -> None:
    grid = random_grid()
    query = torch.randn(B, K, H, dtype=torch.double, generator=torch.Generator().manual_seed(4))
    for window, select in product(["global", "local_p", "local_m"], ["soft", "hard"]):
        config = AttentionConfig(
            score=score_name, window=window, select=select, dim=6, heads=heads, radius=1.5, words=4
        )
        sizes: Any = {"query_dim": H, "feature_dim": D, "cells": L, "context_dim": context_dim}
        contextual = loud(Attention(config, **sizes))
        local = Attention(replace(config, values="local"), **sizes).double().eval()
        local.load_state_dict(contextual.state_dict())
        of_features = contextual.prepare(Grid(grid.features, ROWS, COLUMNS))
        of_local = contextual.prepare(Grid(grid.local, ROWS, COLUMNS))
        mixed = replace(of_features, grid=of_local.grid, values=of_local.values)
        expected = contextual(query, mixed, 1)
        found = local(query, local.prepare(grid), 1)
        assert torch.equal(found.weights, contextual(query, of_features, 1).weights)
        assert torch.equal(found.entropy, expected.entropy)
        assert torch.equal(found.context, expected.context), (window, select)
        assert not torch.allclose(found.context, contextual(query, of_features, 1).context)


@torch.no_grad()
def test_the_encoder_gives_the_cells_before_its_self_attention() -> None:
    layer = {"encoder__self_attention_layers": 1, "encoder__self_attention_heads": 2}
    config = tiny.recipe(Path(), Path(), attention__values="local", **layer)
    torch.manual_seed(0)
    model = loud(build_model(config, V))
    image = torch.rand(2, 3, 64, 64, dtype=torch.double)
    grid = model.encoder(image)
    assert not torch.allclose(grid.features, grid.local)
    mixed = model.encoder.self_attention(grid.local, grid.height, grid.width)
    assert torch.equal(mixed, grid.features)
    model.encoder.self_attention = None
    plain_grid = model.encoder(image)
    assert plain_grid.local is None
    assert torch.equal(plain_grid.features, grid.local)
