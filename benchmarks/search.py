"""Beam search over grids in memory, against the peer's, which takes one photo at a time."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks import peer
from benchmarks.step import SIZE, VOCABULARY, D, L, build_decoder
from benchmarks.timing import Table, in_turns, peak_memory_mib
from captioner.decoding import search
from captioner.grid import Grid

BEAM = 5
MAX_WORDS = 20


@torch.inference_mode()
def run(
    *, checkout: Path | None, device: torch.device, photos: int, batch: int, rounds: int
) -> Table:
    """Photos a second of the batched search, of the same one by one, and of the peer's.

    The decoders have random weights and never end before MAX_WORDS (the peer's: 51 words, so its
    time is counted a word).
    """
    torch.manual_seed(0)
    decoder = build_decoder().eval().to(device)
    grids = torch.randn(photos, L, D, device=device)
    words: dict[str, int] = {}
    captions: dict[str, list[list[int]]] = {}

    def ours(name: str, size: int) -> None:
        found = []
        for first in range(0, photos, size):
            part = Grid(grids[first : first + size], 14, 14)
            found += search(decoder, part, beam_size=BEAM, max_words=MAX_WORDS)
        captions[name] = [hypotheses[0].tokens for hypotheses in found]
        words[name] = sum(len(tokens) + 1 for tokens in captions[name])

    few = min(photos, 4)  # of the peer, which is slow

    calls = {
        "batched": lambda: ours("batched", batch),
        "one by one": lambda: ours("one by one", 1),
    }
    if checkout is not None:
        theirs = peer.decoder_class(checkout, device)(SIZE, SIZE, SIZE, VOCABULARY, D)
        theirs = theirs.eval().to(device)
        with torch.no_grad():  # make the end likely enough that it comes
            theirs.fc.bias[-1] = 2.0
        one = peer.beam_search(checkout, theirs, VOCABULARY, device)

        def peers() -> None:
            words["peer"] = sum(
                len(one(grids[n : n + 1].view(1, 14, 14, D), BEAM)) - 1 for n in range(few)
            )

        calls["peer"] = peers
    found = in_turns(calls, device=device, rounds=rounds)
    a_word = {name: timing.median_s / max(1, words[name]) for name, timing in found.items()}
    same = sum(a == b for a, b in zip(captions["batched"], captions["one by one"], strict=True))
    rows = [
        {
            "search": name,
            "photos": few if name == "peer" else photos,
            "ms a word of a photo": 1000 * a_word[name],
            "photos of 11 words a second": 1 / (11 * a_word[name]),
            "least s": timing.least_s,
            "most s": timing.most_s,
            "times as fast as the peer": a_word["peer"] / a_word[name] if checkout else None,
        }
        for name, timing in found.items()
    ]
    title = (
        f"Beam search, K {BEAM}, L {L}, D {D}, V {VOCABULARY}, batches of {batch}; {same} of "
        f"{photos} captions the same batched and one by one; peak memory "
        f"{peak_memory_mib(device):.0f} MiB"
    )
    return Table(title, rows)
