"""Every decoder with every score, window and select, and several heads: what all of them promise."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import plain
import pytest
import torch
from torch import Tensor

from captioner.config import AttentionConfig, DecoderConfig
from captioner.data.batch import pack_by_step
from captioner.generation import SearchOptions, force_decode, search
from captioner.models.attention.attention import Attention
from captioner.models.build import build_decoder
from captioner.models.decoders.base import Decoder
from captioner.registry import DECODERS, SCORES
from captioner.types import Grid

PHOTOS, ROWS, COLUMNS, D, V = 2, 2, 3, 8, 10
L = ROWS * COLUMNS
START, END = 1, 2
LENGTHS = torch.tensor([3, 1])
LOOKS = list(product(["global", "local_p", "local_m"], ["soft", "hard"], [1, 2]))
EACH_PAIR = [LOOKS[place] for place in (0, 3, 5, 6, 8, 11)]  # of a window, a select and heads
KINDS = [*product(sorted(DECODERS.keys() - {"mean"}), SCORES), ("mean", "additive")]


def random_decoder(kind: Any, attention: AttentionConfig) -> Decoder:
    """Loud enough that words and maps differ."""
    torch.manual_seed(0)
    config = DecoderConfig(
        kind=kind,
        hidden_dim=12,
        embed_dim=10,
        gate="vector",
        heads=3,
        layers=2 if attention.score == "additive" else 1,
        feedforward_dim=16,
    )
    decoder = build_decoder(config, attention, feature_dim=D, vocabulary_size=V, cells=L)
    return plain.loud(decoder)


def test_a_decoder_without_its_methods_is_refused() -> None:
    with pytest.raises(TypeError, match="forward.*prepare.*reorder.*start.*step"):
        Decoder()  # type: ignore[abstract]


def random_grid() -> Grid:
    """With cells from before self-attention, which `attention.values: local` takes."""
    local = plain.grid(PHOTOS, ROWS, COLUMNS, D, seed=2).features
    return replace(plain.grid(PHOTOS, ROWS, COLUMNS, D), local=local)


def greedy(decoder: Decoder, grid: Grid, max_words: int) -> list[int]:
    """Step by step: the likeliest word that may be written, until it is the end."""
    memory = decoder.prepare(grid)
    state = decoder.start(memory)
    words = [START]
    for place in range(max_words + 1):
        logits, _, state = decoder.step(torch.tensor([[words[-1]]]), state, memory)
        ranked = logits[0, 0].argsort(descending=True).tolist()
        allowed = [word for word in ranked if word > 3 or (word == END and place > 0)]
        if allowed[0] == END or place == max_words:
            break
        words.append(allowed[0])
    return words[1:]


@pytest.mark.parametrize(("kind", "score_name"), KINDS)
@torch.no_grad()
def test_steps_batches_search_and_teacher_forcing_agree(kind: str, score_name: Any) -> None:
    grid = random_grid()
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(4, V, (PHOTOS, int(LENGTHS.max())), generator=generator)
    tokens[:, 0] = START
    looks = LOOKS if score_name == "additive" else EACH_PAIR
    for window, select, heads in looks if kind != "mean" else LOOKS[:1]:
        case = f"{window}, {select}, {heads} heads"
        attention = AttentionConfig(
            score=score_name,
            window=window,
            select=select,
            dim=6,
            heads=heads,
            radius=1.0,
            words=4,
            values="local" if score_name in ("additive", "dot") else "contextual",
        )
        decoder = random_decoder(kind, attention)
        memory = decoder.prepare(grid)
        forced = decoder(memory, tokens, LENGTHS)

        state = decoder.start(memory)
        logits, maps, seen = [], [], set[int]()  # positions
        for module in decoder.modules():
            if isinstance(module, Attention):
                module.register_forward_pre_hook(lambda _, args, seen=seen: seen.add(int(args[2])))
        for step in range(tokens.shape[1]):
            found, attended, state = decoder.step(tokens[:, step : step + 1], state, memory)
            logits.append(found[:, 0])
            maps.append(attended.weights[:, 0])
            assert close(attended.weights.sum(-1), torch.ones(PHOTOS, 1)), case
            if attended.heads is not None:
                assert close(attended.heads[:, :, -1].mean(-2), attended.weights), case
                assert close(attended.heads.sum(-1), torch.ones(attended.heads.shape[:-1])), case
            several = heads > 1 or (kind == "transformer" and score_name == "additive")
            assert (attended.heads is not None) == several, case
            assert (attended.cells is None) == (select == "soft" or kind == "mean"), case
        assert close(pack_by_step(torch.stack(logits, 1), LENGTHS), forced.logits), case
        assert close(
            pack_by_step(torch.stack(maps, 1), LENGTHS), pack_by_step(forced.maps, LENGTHS)
        ), case
        assert forced.logits.std() > 0.1, case
        assert len(seen) == (tokens.shape[1] if kind != "mean" else 0), case
        if kind != "mean":
            assert forced.maps[0].std(0).max() > 1e-6, case  # words attend to different places

        found_greedily, second = search(decoder, grid, SearchOptions(1, 3)), grid.select([1])
        assert found_greedily[1][0].tokens == greedy(decoder, second, 3), case
        if score_name == "additive":
            together = search(decoder, grid, SearchOptions(beam_size=3, max_words=4))
            (alone,) = search(decoder, second, SearchOptions(beam_size=3, max_words=4))
            assert [h.tokens for h in alone] == [h.tokens for h in together[1]], case
            ((forced_score,),) = force_decode(decoder, second, [[alone[0].tokens]])
            assert forced_score.log_probs == pytest.approx(alone[0].log_probs, abs=1e-5), case
            assert forced_score.maps == pytest.approx(alone[0].maps, abs=1e-5), case
            if alone[0].cells is not None:
                assert forced_score.cells.tolist() == alone[0].cells.tolist(), case


@pytest.mark.parametrize("window", ["global", "local_m", "local_p"])
@pytest.mark.parametrize("kind", ["lstm", "luong", "top_down", "transformer"])
@torch.no_grad()
def test_attention_at_random_weighs_all_cells_of_the_window_alike(kind: str, window: Any) -> None:
    decoder = random_decoder(kind, AttentionConfig(window=window, dim=6, radius=1.0, words=4))
    grid = replace(random_grid(), at_random=True)
    tokens = torch.tensor([[START, 4, 5], [START, 6, 0]])
    maps = decoder(decoder.prepare(grid), tokens, LENGTHS).maps[0]
    inside = maps > 0
    expected = inside / inside.sum(-1, keepdim=True)
    torch.testing.assert_close(maps, expected.to(maps.dtype))
    assert bool(inside.all()) == (window == "global")


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("select", ["soft", "hard"])
@pytest.mark.parametrize("kind", ["lstm", "luong", "top_down", "transformer"])
def test_the_grid_s_gradient_of_teacher_forcing_is_that_of_the_steps(
    kind: str, select: Any, heads: int
) -> None:
    """Teacher forcing takes it of all words at once, the steps one by one."""
    features = random_grid().features.requires_grad_()
    grid = Grid(features, ROWS, COLUMNS)
    tokens = torch.tensor([[START, 4, 7], [START, 5, 6]])
    decoder = random_decoder(kind, AttentionConfig(select=select, dim=6, heads=heads))
    forced = decoder(decoder.prepare(grid), tokens, LENGTHS)
    weights = torch.randn_like(forced.logits)
    (at_once,) = torch.autograd.grad((forced.logits * weights).sum(), features)

    memory = decoder.prepare(grid)
    state, logits = decoder.start(memory), []
    for step in range(tokens.shape[1]):
        found, _, state = decoder.step(tokens[:, step : step + 1], state, memory)
        logits.append(found[:, 0])
    by_steps = pack_by_step(torch.stack(logits, 1), LENGTHS)
    (expected,) = torch.autograd.grad((by_steps * weights).sum(), features)
    assert expected.abs().max() > 1e-3
    assert close(at_once, expected)


def close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected.double(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("kind", "score_name"), KINDS)
def test_training_reaches_every_weight(kind: str, score_name: Any) -> None:
    """With soft attention by the words alone; with hard attention by the maps' logarithms too."""
    tokens = torch.randint(4, V, (PHOTOS, 3), generator=torch.Generator().manual_seed(2))
    mechanisms = [("global", "soft", 1), ("local_p", "hard", 2)]
    for window, select, heads in mechanisms if kind != "mean" else mechanisms[:1]:
        attention = AttentionConfig(
            score=score_name, window=window, select=select, dim=6, heads=heads, semi_sampling=0.0
        )
        decoder = random_decoder(kind, attention).train()
        forced = decoder(decoder.prepare(random_grid()), tokens, LENGTHS)
        (forced.logits.logsumexp(-1).sum() + forced.log_prob.sum()).backward()
        for name, parameter in decoder.named_parameters():
            gradient = parameter.grad
            assert gradient is not None, (window, select, heads, name)
            assert torch.isfinite(gradient).all(), (window, select, heads, name)
            assert gradient.any(), (window, select, heads, name)
