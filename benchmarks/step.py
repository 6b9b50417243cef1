"""One training step of the decoder, forward and backward, against the peer and the matrix rate."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from benchmarks import peer
from benchmarks.timing import Apart, Table, in_turns, matrix_rate, peak_memory_mib
from captioner.config import AttentionConfig, DecoderConfig
from captioner.config.settings import HardConfig, LossConfig
from captioner.data.batch import Batch, word_mask
from captioner.models.attention.attention import Attention
from captioner.models.decoders.lstm import LSTMDecoder
from captioner.models.products import onednn_products
from captioner.runtime.cuda_graphs import GraphCache
from captioner.runtime.device import keep_freed_memory, onednn_is_faster
from captioner.training.cross_entropy import caption_losses
from captioner.training.reinforce import Reinforce
from captioner.types import Grid

L, D, SIZE, VOCABULARY, LONGEST = 196, 2048, 512, 9490, 20  # SIZE: of attention, state, embedding


def build_decoder(*, hard: bool = False) -> LSTMDecoder:
    settings = AttentionConfig(dim=SIZE, select="hard" if hard else "soft", semi_sampling=0.0)
    attention = Attention(settings, query_dim=SIZE, feature_dim=D)
    config = DecoderConfig(hidden_dim=SIZE, embed_dim=SIZE, gate="vector", output="plain")
    return LSTMDecoder(config, lambda _=None: attention, vocabulary_size=VOCABULARY, feature_dim=D)


def operations(lengths: Tensor) -> float:
    """Floating point operations of all matrix products, forward and backward.

    A product's backward is two more of its size, but for inputs that need no gradient: the grid.
    """
    captions, words = len(lengths), int(lengths.sum())
    keys = 2 * 2.0 * captions * L * D * SIZE
    start = 2 * 2.0 * captions * D * SIZE * 2
    a_word = (
        3
        * 2.0
        * (
            SIZE * SIZE  # query
            + L * SIZE  # scores
            + SIZE * D  # gate
            + (SIZE + D + SIZE) * 4 * SIZE  # LSTM
            + SIZE * VOCABULARY
        )
    )
    context = 2 * 2.0 * L * D
    return keys + start + words * (a_word + context)


def run(
    *, checkout: Path | None, device: torch.device, batch: int, dtype: torch.dtype, rounds: int
) -> Table:
    """Steps of the soft and the hard decoder, and of the peer's, on the same grids and words.

    The peer is in a process apart, so that neither takes the other's freed memory.
    """
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, for both
    inputs = made_up_inputs(batch, device)
    lengths = inputs[2]
    calls: dict[str, Callable[[], None]] = {
        "soft": _ours(*inputs, dtype, hard=False),
        "hard": _ours(*inputs, dtype, hard=True),
    }
    if device.type == "cuda":
        calls["soft, recorded"] = _ours(*inputs, dtype, hard=False, recorded=True)
        calls["hard, recorded"] = _ours(*inputs, dtype, hard=True, recorded=True)
    if checkout is not None:
        calls["peer"] = Apart(_peers, checkout, batch, str(device), dtype)
    on_cpu = device.type == "cpu"
    if on_cpu:  # as training does
        keep_freed_memory()
    with onednn_products() if on_cpu and onednn_is_faster() else nullcontext():
        found = in_turns(calls, device=device, rounds=rounds)
        rate = matrix_rate(int(lengths.sum()), SIZE, VOCABULARY, device=device, dtype=dtype)
    rows = []
    for name, timing in found.items():
        share = operations(lengths) / timing.median_s / rate
        rows.append(
            {
                "decoder": name,
                "s a step": timing.median_s,
                "least": timing.least_s,
                "most": timing.most_s,
                "peer / this": found["peer"].median_s / timing.median_s if checkout else None,
                "this / soft": timing.median_s / found["soft"].median_s,
                "share of the matrix rate": None if name == "peer" else share,
            }
        )
    title = (
        f"Training step of the decoder, {str(dtype).removeprefix('torch.')}, B {batch}, L {L}, "
        f"D {D}, A = H = E = {SIZE}, V {VOCABULARY}, {int(lengths.sum())} words; matrix rate "
        f"{rate / 1e9:.0f} GFLOP/s, peak memory {peak_memory_mib(device):.0f} MiB"
    )
    return Table(title, rows)


def made_up_inputs(batch: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Grids [B, L, D], tokens [B, LONGEST + 1], lengths [B] on the CPU; alike in every process."""
    generator = torch.Generator().manual_seed(0)
    grids = torch.randn(batch, L, D, generator=generator)
    tokens = torch.randint(4, VOCABULARY, (batch, LONGEST + 1), generator=generator)
    lengths = torch.randint(8, LONGEST + 1, (batch,), generator=generator).sort(descending=True)[0]
    lengths[0] = LONGEST
    return grids.to(device), tokens.to(device), lengths


def batch_of(tokens: Tensor, lengths: Tensor, *, fixed_shape: bool) -> Batch:
    """The captions whose tokens [B, T + 1] these are, one an image."""
    words: float | Tensor = float(lengths.sum())
    captions: float | Tensor = float(len(lengths))
    if fixed_shape:
        lengths = word_mask(lengths).to(tokens.device)
        words, captions = (torch.tensor(count, device=tokens.device) for count in (words, captions))
    index = torch.arange(len(tokens), device=tokens.device)
    return Batch(tokens, index, index, tokens[:, 1:], lengths, words, captions)


def _ours(
    grids: Tensor,
    tokens: Tensor,
    lengths: Tensor,
    dtype: torch.dtype,
    *,
    hard: bool,
    recorded: bool = False,
) -> Callable[[], None]:
    """Return a step, packed; or padded and recorded as a CUDA graph, as `train.compile` does."""
    grid, device = Grid(grids, 14, 14), grids.device
    batch = batch_of(tokens, lengths, fixed_shape=recorded)
    torch.manual_seed(0)
    decoder = build_decoder(hard=hard).to(device)
    reinforce = None
    if hard:
        reinforce = Reinforce(
            HardConfig(samples=1, baseline="moving_average", credit="caption", entropy=0.01)
        )
        reinforce.to(device)

    def step() -> None:
        decoder.zero_grad(set_to_none=not recorded)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            forced = decoder(decoder.prepare(grid), batch.tokens, batch.lengths)
        caption_losses(forced, batch, LossConfig(), reinforce)["total"].backward()

    if not recorded:
        return step
    graphs = GraphCache(record=True)
    return lambda: graphs.run("step", step)


def _peers(checkout: Path, batch: int, on: str, dtype: torch.dtype) -> Callable[[], None]:
    torch.set_float32_matmul_precision("high")
    device = torch.device(on)
    grids, tokens, lengths = made_up_inputs(batch, device)
    lengths = lengths.to(device)  # where it has them
    torch.manual_seed(0)
    decoder = peer.decoder_class(checkout, device)(SIZE, SIZE, SIZE, VOCABULARY, D).to(device)
    loss_of = nn.CrossEntropyLoss()
    square = grids.view(len(grids), 14, 14, D)

    def step() -> None:
        decoder.zero_grad()
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            scores, ordered, counts, maps, _ = decoder(square, tokens, (lengths + 1).unsqueeze(1))
        packed = pack_padded_sequence(scores, counts, batch_first=True)[0]
        targets = pack_padded_sequence(ordered[:, 1:], counts, batch_first=True)[0]
        loss = loss_of(packed, targets) + ((1.0 - maps.sum(dim=1)) ** 2).mean()
        loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step
