"""Beam search over grids in memory, against the peer's, which takes one photo at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks import peer
from benchmarks.step import SIZE, VOCABULARY, D, L, build_decoder
from benchmarks.timing import Apart, Table, in_turns, peak_memory_mib
from captioner.checkpoint import GRAPHS, WEIGHTS
from captioner.engines.graphs import Graph, GraphDecoder
from captioner.export import graphs_of_decoder, weight_places
from captioner.generation import SearchOptions, search
from captioner.generation.beam_search import END
from captioner.models.decoders.lstm import LSTMDecoder
from captioner.runtime.cuda_graphs import GraphCache, graphs_of_search
from captioner.types import Grid

BEAM = 5
MAX_WORDS = 20


PEERS = 4  # photos of the peer, which is slow
ALONE = 16  # photos one by one


@torch.inference_mode()
def run(
    *, checkout: Path | None, device: torch.device, photos: int, batch: int, rounds: int
) -> Table:
    """Photos a second of the batched search, of the same one by one, and of the peer's.

    On a CPU also by the runtime, which is what captions there by default, in a process of its own.
    On a GPU also in CUDA graphs, which is what captions there by default.
    The decoders have random weights and write MAX_WORDS words for every photo.
    """
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, for both
    decoder = _decoder().to(device)
    grids = _grids(photos).to(device)
    alone = min(photos, ALONE)
    captions: dict[str, list[list[int]]] = {}

    def ours(name: str, count: int, size: int, graphs: GraphCache | None = None) -> None:
        captions[name] = _search(decoder, grids[:count], size, graphs)

    calls: dict[str, Callable[[], None]] = {
        "batched": lambda: ours("batched", photos, batch),
        "one by one": lambda: ours("one by one", alone, 1),
    }
    counts = {"batched": photos, "one by one": alone, "peer": PEERS}
    if graphs := graphs_of_search(device):
        calls["graphs"] = lambda: ours("graphs", photos, batch, graphs)
        calls["graphs, one by one"] = lambda: ours("graphs, one by one", alone, 1, graphs)
        counts |= {"graphs": photos, "graphs, one by one": alone}
    if device.type == "cpu":
        calls["runtime"] = Apart(_runtime, photos, batch)
        calls["runtime, one by one"] = Apart(_runtime, alone, 1)
        counts |= {"runtime": photos, "runtime, one by one": alone}
    if checkout is not None:
        calls["peer"] = Apart(_peers, checkout, str(device))
    found = in_turns(calls, device=device, rounds=rounds)
    each = {name: timing.median_s / counts[name] for name, timing in found.items()}
    captions |= {
        name: call.result for name, call in calls.items() if isinstance(call, Apart) and call.result
    }
    same = {
        name: sum(a == b for a, b in zip(captions["batched"], others, strict=False))
        for name, others in captions.items()
    }
    rows = [
        {
            "search": name,
            "photos": counts[name],
            "captions as batched": same.get(name),
            "photos a second": 1 / each[name],
            "least s": timing.least_s,
            "most s": timing.most_s,
            "times as fast as the peer": each["peer"] / each[name] if checkout else None,
        }
        for name, timing in found.items()
    ]
    title = (
        f"Beam search, K {BEAM}, L {L}, D {D}, V {VOCABULARY}, {MAX_WORDS} words, batches of "
        f"{batch}; peak memory {peak_memory_mib(device):.0f} MiB"
    )
    return Table(title, rows)


def _decoder() -> LSTMDecoder:
    torch.manual_seed(0)
    decoder = build_decoder().eval()
    with torch.no_grad():
        decoder.vocabulary.bias[END] = -100.0
    return decoder


def _grids(photos: int) -> Tensor:
    return torch.randn(photos, L, D, generator=torch.Generator().manual_seed(1))


def _search(
    decoder: Any, grids: Any, size: int, graphs: GraphCache | None = None
) -> list[list[int]]:
    """Return the words of the grids' captions, searched in batches of this size."""
    found = []
    for first in range(0, len(grids), size):
        part = Grid(grids[first : first + size], 14, 14)
        found += search(decoder, part, SearchOptions(beam_size=BEAM, max_words=MAX_WORDS), graphs)
    return [hypotheses[0].tokens for hypotheses in found]


def _runtime(photos: int, batch: int) -> Callable[[], list[list[int]]]:
    """Export the decoder; return a search by its graphs."""
    holder = nn.ModuleDict({"decoder": _decoder()})
    grids = _grids(photos)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / WEIGHTS
        save_file(holder.state_dict(), weights)
        example = Grid(grids[:2], 14, 14)
        places = weight_places(holder, weights)
        graphs, description = graphs_of_decoder(holder["decoder"], example)
        for name, graph in zip(GRAPHS[1:], graphs, strict=True):
            (Path(folder) / name).write_bytes(graph.to_onnx(places))
        prepare, step = (Graph(Path(folder) / name) for name in GRAPHS[1:])
        decoder = GraphDecoder(prepare, step, "argmax", description)
    return lambda: _search(decoder, grids.numpy(), batch)


def _peers(checkout: Path, on: str) -> Callable[[], None]:
    device = torch.device(on)
    torch.set_float32_matmul_precision("high")
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
