"""The Transformer decoder against torch's own, its positions against a loop, its cache."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import plain
import pytest
import tiny
import torch
from torch import Tensor, nn

from captioner.config import AttentionConfig, DecoderConfig
from captioner.data.batch import pack_by_step
from captioner.errors import ConfigError
from captioner.generation import SearchOptions, force_decode, search
from captioner.models.attention.attention import Attention
from captioner.models.decoders.transformer import TransformerDecoder, sinusoidal_positions
from captioner.types import Grid

V, ROWS, COLUMNS, D, H, HEADS, F, LAYERS = 11, 2, 3, 8, 12, 2, 20, 2
L = ROWS * COLUMNS


def random_decoder(
    *,
    dim: int = D,
    layers: int = LAYERS,
    grid_heads: int = HEADS,
    select: str = "soft",
    **settings: Any,
) -> TransformerDecoder:
    torch.manual_seed(0)
    attention = AttentionConfig(
        "scaled_dot", dim=H, heads=grid_heads, select=select, semi_sampling=0.0
    )
    attend = partial(Attention, attention, query_dim=H, feature_dim=dim)
    shape = {"hidden_dim": H, "heads": HEADS, "feedforward_dim": F, "layers": layers}
    config = DecoderConfig(**{"dropout": 0.1, **shape, **settings})
    return plain.loud(TransformerDecoder(config, attend, vocabulary_size=V, feature_dim=dim))


def random_grid(photos: int = 3, dim: int = D) -> Grid:
    return plain.grid(photos, ROWS, COLUMNS, dim)


def random_tokens(photos: int = 3, words: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(4, V, (photos, words), generator=generator)
    tokens[:, 0] = 1
    return tokens


def join(target: nn.MultiheadAttention, layers: list[nn.Linear], output: nn.Linear) -> None:
    """Query, key and value as torch keeps them, in one matrix; ours may have no bias."""
    biases = [torch.zeros(H) if layer.bias is None else layer.bias for layer in layers]
    target.in_proj_weight.copy_(torch.cat([layer.weight for layer in layers]))
    target.in_proj_bias.copy_(torch.cat(biases))
    target.out_proj.load_state_dict(output.state_dict())


@torch.no_grad()
def torchs_own(decoder: TransformerDecoder, *, pre_norm: bool) -> nn.TransformerDecoder:
    layer = nn.TransformerDecoderLayer(H, HEADS, F, batch_first=True, norm_first=pre_norm)
    norm = nn.LayerNorm(H) if pre_norm else None
    theirs = nn.TransformerDecoder(layer, len(decoder.layers), norm=norm).double().eval()
    for ours, other in zip(decoder.layers, theirs.layers, strict=True):
        own: Any = ours
        target: Any = other
        words, cells = own.self_attention, own.attention
        join(target.self_attn, [words.query, words.key, words.value], words.output)
        projections = [cells.score.query, cells.score.key, cells.values.value]
        join(target.multihead_attn, projections, cells.values.output)
        target.linear1.load_state_dict(own.feedforward[0].state_dict())
        target.linear2.load_state_dict(own.feedforward[3].state_dict())
        for number, norm_of_part in enumerate((target.norm1, target.norm2, target.norm3)):
            norm_of_part.load_state_dict(own.norms[number].state_dict())
    if pre_norm:
        theirs.norm.load_state_dict(decoder.norm.state_dict())
    return theirs


@pytest.mark.parametrize("pre_norm", [True, False])
@torch.no_grad()
def test_it_is_torchs_own_decoder_with_the_same_weights(pre_norm: bool) -> None:
    decoder = random_decoder(pre_norm=pre_norm, dim=H)
    theirs = torchs_own(decoder, pre_norm=pre_norm)
    grid, tokens = random_grid(dim=H), random_tokens()
    positions = sinusoidal_positions(torch.arange(6), H).double()
    words = decoder.embedding(tokens) * math.sqrt(H) + positions
    mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.double)
    expected = decoder.vocabulary(theirs(words, grid.features, tgt_mask=mask))
    lengths = torch.tensor([6, 6, 6])
    forced = decoder(decoder.prepare(grid), tokens, lengths)
    assert expected.std() > 0.3
    torch.testing.assert_close(forced.logits, pack_by_step(expected, lengths), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@torch.no_grad()
def test_words_written_with_the_cache_are_those_of_each_prefix_read_as_a_whole(
    positions: Any, pre_norm: bool
) -> None:
    decoder = random_decoder(positions=positions, pre_norm=pre_norm)
    grid, tokens = random_grid(), random_tokens()
    memory = decoder.prepare(grid)
    state = decoder.start(memory)
    for count in range(1, 7):
        logits, attended, state = decoder.step(tokens[:, count - 1 : count], state, memory)
        assert state.keys.shape[-2] == count
        forced = decoder(memory, tokens[:, :count], torch.full((3,), count))
        torch.testing.assert_close(logits[:, 0], forced.logits[-3:], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(attended.weights[:, 0], forced.maps[:, -1])
        torch.testing.assert_close(attended.entropy[:, 0], forced.entropy[:, -1])


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("grid_heads", [1, 2])
@torch.no_grad()
def test_the_output_has_the_maps_of_all_layers_and_heads(layers: int, grid_heads: int) -> None:
    decoder = random_decoder(layers=layers, grid_heads=grid_heads)
    own: list[Any] = []
    for layer in decoder.layers:
        layer.attention.register_forward_hook(lambda _, __, found: own.append(found))
    memory = decoder.prepare(random_grid())
    _, attended, _ = decoder.step(torch.tensor([[1, 1]] * 3), decoder.start(memory, 2), memory)
    assert len(own) == layers
    torch.testing.assert_close(attended.weights, own[-1].weights)
    torch.testing.assert_close(attended.entropy, sum(one.entropy for one in own) / layers)
    if layers == grid_heads == 1:
        assert attended.heads is None
        return
    assert attended.heads.shape == (3, 2, layers, grid_heads, L)
    for number, one in enumerate(own):
        torch.testing.assert_close(attended.heads[:, :, number].mean(2), one.weights)
        if one.heads is not None:
            torch.testing.assert_close(attended.heads[:, :, number], one.heads[:, :, 0])


def test_the_probability_of_hard_attention_is_that_of_the_samples_of_all_layers() -> None:
    decoder = random_decoder(select="hard").train()
    own: list[Any] = []
    for layer in decoder.layers:
        layer.attention.register_forward_hook(lambda _, __, found: own.append(found))
    lengths = torch.tensor([6, 4, 1])
    forced = decoder(decoder.prepare(random_grid()), random_tokens(), lengths)
    running = torch.arange(6) < lengths.unsqueeze(1)
    assert len(own) == LAYERS
    expected = sum(one.log_prob for one in own) * running
    torch.testing.assert_close(forced.log_prob, expected)
    assert forced.log_prob[~running].abs().max() == 0
    assert forced.log_prob[running].max() < 0


@pytest.mark.parametrize("dim", [1, 2, 7, 12])
def test_sinusoidal_positions_are_the_papers_in_a_plain_loop(dim: int) -> None:
    found = sinusoidal_positions(torch.arange(30), dim)
    assert found.shape == (30, dim)
    for position in range(30):
        for place in range(dim):
            angle = position / 10000 ** (2 * (place // 2) / dim)
            expected = math.cos(angle) if place % 2 else math.sin(angle)
            assert found[position, place].item() == pytest.approx(expected, abs=2e-5)


def test_learned_positions_refuse_a_longer_text_in_one_sentence() -> None:
    decoder = random_decoder(positions="learned", max_positions=4)
    grid, tokens = random_grid(1), random_tokens(1)
    force_decode(decoder, grid, [[[4, 5, 6]]])  # four steps, the end among them
    force_decode(decoder, grid, [[[4, 5, 6, 7]]], max_words=4)
    search(decoder, grid, SearchOptions(beam_size=2, max_words=4))
    with torch.no_grad():
        decoder.vocabulary.bias[2] = -torch.inf
    for too_long in (
        lambda: decoder(decoder.prepare(grid), tokens, torch.tensor([5])),
        lambda: force_decode(decoder, grid, [[[4, 5, 6, 7]]]),
        lambda: search(decoder, grid, SearchOptions(beam_size=2, max_words=5)),
    ):
        assert tiny.sentence(ConfigError, too_long) == (
            "decoder.max_positions: this model has 4 learned positions, so its captions cannot be "
            "longer; lower max_words"
        )
