"""Beam search over grids in memory, against the peer's, which takes one photo at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks import peer
from benchmarks.step import SIZE, VOCABULARY, D, L, build_decoder
from benchmarks.timing import Apart, Table, in_turns, peak_memory_mib
from captioner.generation import search
from captioner.generation.beam_search import END
from captioner.types import Grid

BEAM = 5
MAX_WORDS = 20


PEERS = 4  # photos of the peer, which is slow
ALONE = 64  # photos one by one


@torch.inference_mode()
def run(
    *, checkout: Path | None, device: torch.device, photos: int, batch: int, rounds: int
) -> Table:
    """Photos a second of the batched search, of the same one by one, and of the peer's.

    The decoders have random weights and write MAX_WORDS words for every photo.
    """
    torch.manual_seed(0)
    decoder = build_decoder().eval().to(device)
    with torch.no_grad():
        decoder.vocabulary.bias[END] = -100.0
    grids = torch.randn(photos, L, D, device=device)
    alone = min(photos, ALONE)
    captions: dict[str, list[list[int]]] = {}

    def ours(name: str, count: int, size: int) -> None:
        found = []
        for first in range(0, count, size):
            part = Grid(grids[first : min(first + size, count)], 14, 14)
            found += search(decoder, part, beam_size=BEAM, max_words=MAX_WORDS)
        captions[name] = [hypotheses[0].tokens for hypotheses in found]

    calls: dict[str, Callable[[], None]] = {
        "batched": lambda: ours("batched", photos, batch),
        "one by one": lambda: ours("one by one", alone, 1),
    }
    counts = {"batched": photos, "one by one": alone, "peer": PEERS}
    if checkout is not None:
        calls["peer"] = Apart(_peers, checkout, str(device))
    found = in_turns(calls, device=device, rounds=rounds)
    each = {name: timing.median_s / counts[name] for name, timing in found.items()}
    same = sum(a == b for a, b in zip(captions["batched"], captions["one by one"], strict=False))
    rows = [
        {
            "search": name,
            "photos": counts[name],
            "photos a second": 1 / each[name],
            "least s": timing.least_s,
            "most s": timing.most_s,
            "times as fast as the peer": each["peer"] / each[name] if checkout else None,
        }
        for name, timing in found.items()
    ]
    title = (
        f"Beam search, K {BEAM}, L {L}, D {D}, V {VOCABULARY}, {MAX_WORDS} words, batches of "
        f"{batch}; {same} of {alone} captions the same batched and one by one; peak memory "
        f"{peak_memory_mib(device):.0f} MiB"
    )
    return Table(title, rows)


def _peers(checkout: Path, on: str) -> Callable[[], None]:
    device = torch.device(on)
    torch.manual_seed(0)
    decoder = peer.decoder_class(checkout, device)(SIZE, SIZE, SIZE, VOCABULARY, D)
    decoder = decoder.eval().to(device)
    grids = torch.randn(PEERS, 1, 14, 14, D, device=device)
    one = peer.beam_search(checkout, decoder, VOCABULARY, device)
    words = 0

    def end_in_time(layer: nn.Module, read: object, logits: Tensor) -> None:
        nonlocal words  # its search fails where no caption ends
        words += 1
        logits[:, -1] = 100.0 if words > MAX_WORDS else -100.0

    decoder.fc.register_forward_hook(end_in_time)

    def search_all() -> None:
        nonlocal words
        for grid in grids:
            words = 0
            found = one(grid, BEAM)
            assert len(found) == MAX_WORDS + 2, "start, words, end"

    return search_all
