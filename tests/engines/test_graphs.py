"""Exported graphs compute what the decoder computes, for every decoder and kind of attention."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
import torch
from filelock import FileLock
from onnx import TensorProto, helper
from safetensors.torch import save_file
from torch import nn

from captioner import Captioner
from captioner.checkpoint import model_folder
from captioner.checkpoint_writer import write_manifest
from captioner.config import AttentionConfig, DecoderConfig, HardAttentionMode
from captioner.data.vocabulary import Vocabulary
from captioner.engines.graphs import GRAPHS, Graph, GraphDecoder
from captioner.errors import CheckpointError
from captioner.export import graphs_of_decoder, weight_places
from captioner.generation import SearchOptions, force_decode, search
from captioner.models.attention.attention import Memory
from captioner.models.build import build_decoder
from captioner.models.decoders.base import Decoder
from captioner.types import Grid, hard_attention_mode

GraphsOf = Callable[..., tuple[Path, GraphDecoder]]
B, ROWS, COLUMNS, D, V = 3, 2, 3, 8, 11
# Each window and select comes at least once; with -m slow each decoder, score and gate too.
CASES: list[Any] = [
    ("lstm", {"score": "dot", "select": "hard", "window": "local_p"},
     {"gate": "vector", "tie_embeddings": True}),
    ("luong", {"score": "concat", "window": "local_m", "select": "hard", "key_smoothing": 0.5},
     {"gate": "scalar"}),
    pytest.param("top_down", {"score": "location", "heads": 2}, {}, marks=pytest.mark.slow),
    pytest.param("transformer", {"score": "cosine", "window": "local_m", "heads": 2},
                 {"positions": "learned"}, marks=pytest.mark.slow),
    pytest.param("luong", {"score": "general", "window": "local_m"},
                 {"input_feeding": False, "gate": "none"}, marks=pytest.mark.slow),
    pytest.param("mean", {}, {}, marks=pytest.mark.slow),
    pytest.param("lstm", {"score": "additive"}, {"gate": "none"}, marks=pytest.mark.slow),
    pytest.param("transformer", {"score": "scaled_dot", "select": "hard", "heads": 2}, {"layers": 2},
                 marks=pytest.mark.slow),
]  # fmt: skip


def decoder_of(kind: str, attention: dict[str, Any], settings: dict[str, Any]) -> Decoder:
    """Loud enough that words and maps differ."""
    torch.manual_seed(0)
    config = DecoderConfig(
        **{"kind": kind, "hidden_dim": 12, "embed_dim": 12, "heads": 3, "layers": 1}
        | {"feedforward_dim": 16, "max_positions": 24}
        | settings
    )
    chosen = AttentionConfig(**{"dim": 6, "radius": 1.0, "words": 4} | attention)
    decoder = build_decoder(config, chosen, feature_dim=D, vocabulary_size=V, cells=ROWS * COLUMNS)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return decoder.eval()


def grids() -> tuple[Grid, Grid]:
    """The same grid as tensors and as arrays."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(B, ROWS * COLUMNS, D, generator=generator)
    return Grid(features, ROWS, COLUMNS), Grid(features.numpy(), ROWS, COLUMNS)


def as_graphs(decoder: Decoder, folder: Path, dtype: torch.dtype = torch.float32) -> GraphDecoder:
    holder = nn.ModuleDict({"decoder": decoder})
    by_pointer = {value.data_ptr(): name for name, value in holder.state_dict().items()}
    weights = {name: holder.state_dict()[name].to(dtype) for name in by_pointer.values()}
    save_file(weights, folder / "model.safetensors")
    example = Grid(torch.rand(2, ROWS * COLUMNS, D), ROWS, COLUMNS)
    places = weight_places(holder, folder / "model.safetensors")
    graphs, description = graphs_of_decoder(decoder, example)
    for name, graph in zip(GRAPHS[1:], graphs, strict=True):
        (folder / name).write_bytes(graph.to_onnx(places))
    prepare, step = (Graph(folder / name) for name in GRAPHS[1:])
    return GraphDecoder(prepare, step, "argmax", description)


@pytest.fixture(scope="module")
def graphs_of(fast_export: None, tmp_path_factory: pytest.TempPathFactory) -> GraphsOf:
    """Return the graphs of a case and their folder, made once because it takes seconds."""
    made: dict[str, tuple[Path, GraphDecoder]] = {}

    def graphs(*case: Any) -> tuple[Path, GraphDecoder]:
        if str(case) not in made:
            folder = tmp_path_factory.mktemp("graphs")
            made[str(case)] = folder, as_graphs(decoder_of(*case), folder)
        return made[str(case)]

    return graphs


@pytest.mark.parametrize(("kind", "attention", "settings"), CASES)
def test_a_search_by_graphs_is_that_of_the_decoder(
    kind: str, attention: dict[str, Any], settings: dict[str, Any], graphs_of: GraphsOf
) -> None:
    decoder = decoder_of(kind, attention, settings)
    tensors, arrays = grids()
    options: dict[str, Any] = {"beam_size": 3, "max_words": 20, "min_words": 18}
    options["num_captions"] = 3
    expected = search(decoder, tensors, SearchOptions(**options))
    given = [[[4, 5, 6], [7]]] * B
    expected += force_decode(decoder, tensors, given)
    _, graphs = graphs_of(kind, attention, settings)
    found = search(graphs, arrays, SearchOptions(**options)) + force_decode(graphs, arrays, given)
    if kind == "transformer":  # whose layers have values of their own
        assert not [name for name in graphs.prepare(arrays).arrays if "features" in name]
    for image, found_of_image in zip(expected, found, strict=True):
        assert [h.tokens for h in image] == [h.tokens for h in found_of_image]
        for one, other in zip(image, found_of_image, strict=True):
            for name in ("log_probs", "maps", "beta", "cells", "heads"):
                value, graph_value = getattr(one, name), getattr(other, name)
                assert (value is None) == (graph_value is None), name
                if value is not None:
                    np.testing.assert_allclose(value, graph_value, rtol=2e-4, atol=2e-5)
    assert len({tuple(image[0].tokens) for image in found}) > 1 or kind == "mean"


def test_graphs_sample_as_often_as_the_map_says_and_mix_by_the_expectation(
    graphs_of: GraphsOf,
) -> None:
    """Each share of 5,000 samples within five of its standard errors."""
    decoder, count = decoder_of(*CASES[0]), 5000
    _, graphs = graphs_of(*CASES[0])
    features = grids()[1].features[:1]

    def first_step(mode: HardAttentionMode, images: int) -> tuple[Any, Any]:
        """Return logits and attention of the graphs."""
        memory = graphs.prepare(Grid(np.repeat(features, images, axis=0), ROWS, COLUMNS))
        with hard_attention_mode(mode):
            tokens = np.full((images, 1), Vocabulary.start)
            return graphs.step(tokens, graphs.start(memory), memory)[:2]

    logits, sampled = first_step("sample", count)
    cells, shares = sampled.cells[:, 0], sampled.weights[0, 0]
    found = np.bincount(cells, minlength=len(shares)) / count
    assert (np.abs(found - shares) <= 5 * np.sqrt(shares * (1 - shares) / count)).all()
    mixed, expectation = first_step("expectation", 1)
    assert expectation.cells is None
    grid = Grid(torch.from_numpy(features), ROWS, COLUMNS)
    memory = decoder.prepare(grid)
    start = torch.full((1, 1), Vocabulary.start)
    with hard_attention_mode("expectation"), torch.no_grad():
        expected = decoder.step(start, decoder.start(memory), memory)[0]
    np.testing.assert_allclose(mixed, expected, rtol=2e-4, atol=2e-5)
    for cell in set(cells.tolist()):  # one cell everywhere is what a sample of it gives
        same = Grid(grid.features[:, cell : cell + 1].expand_as(grid.features), ROWS, COLUMNS)
        only = Memory(same, memory.keys)
        with torch.no_grad():
            expected = decoder.step(start, decoder.start(memory), only)[0]
        np.testing.assert_allclose(logits[cells == cell][0], expected[0], rtol=2e-4, atol=2e-5)


def test_items_computed_at_once_come_in_their_order(graphs_of: GraphsOf) -> None:
    path = graphs_of(*CASES[0])[0] / GRAPHS[1]
    graph = Graph(path, streams=2)
    _, grid = grids()
    items = [{"features": np.asarray(grid.features[i % B, None]) * (1 + i)} for i in range(7)]
    one_by_one = [Graph(path)(item) for item in items]
    with ThreadPoolExecutor(2) as threads:
        for found, expected in zip(threads.map(graph, items), one_by_one, strict=True):
            assert found.keys() == expected.keys()
            for name, array in found.items():
                assert np.array_equal(array, expected[name])


def test_a_graph_is_not_read_from_a_cache_that_another_process_fills(tmp_path: Path) -> None:
    # OpenVINO maps the file into memory: while it is written, that ends in SIGBUS
    graph, lock = model_folder("soft") / GRAPHS[1], FileLock(tmp_path / ".lock")
    with ThreadPoolExecutor() as threads:
        with lock:
            compiled = threads.submit(Graph, graph, tmp_path)
            with pytest.raises(FutureTimeout):
                compiled.result(timeout=1)
            assert list(tmp_path.glob("*.blob")) == []
        compiled.result(timeout=60)
    assert len(list(tmp_path.glob("*.blob"))) == 1


@pytest.fixture
def folder(model_with_graphs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_with_graphs, tmp_path / "model"))


def caption(folder: Path) -> None:
    """Caption a photo by the folder's graphs, which its manifest is made to agree with."""
    write_manifest(folder)
    Captioner.from_pretrained(folder, engine="runtime").caption(tiny.photo(1)[0])


def change(path: Path, function: Callable[[Any], None]) -> None:
    """Change an ONNX file without reading what it names."""
    model = onnx.load(path, load_external_data=False)
    function(model)
    path.write_bytes(model.SerializeToString())


def named(model: Any) -> list[Any]:
    """The places that a graph names."""
    return [entry for tensor in model.graph.initializer for entry in tensor.external_data]


def test_the_graphs_of_an_export_are_used(folder: Path) -> None:
    caption(folder)


def other_file(model: Any) -> None:
    next(e for e in named(model) if e.key == "location").value = "../secret"


def other_file_in_a_constant(model: Any) -> None:
    tensor = TensorProto(name="c", dims=[4], data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    model.graph.node.append(helper.make_node("Constant", [], ["c"], value=tensor))


def other_domain(model: Any) -> None:
    model.graph.node[0].domain = "org.openvinotoolkit"


@pytest.mark.parametrize(
    ("name", "function"),
    [*((name, other_file) for name in GRAPHS), (GRAPHS[0], other_file_in_a_constant),
     (GRAPHS[0], other_domain)],
)  # fmt: skip
def test_a_graph_that_reads_other_files_or_runs_other_code_is_refused(
    folder: Path, name: str, function: Callable[[Any], None]
) -> None:
    (folder.parent / "secret").write_bytes((folder / "model.safetensors").read_bytes())
    change(folder / name, function)
    message = tiny.sentence(CheckpointError, caption, folder)
    assert str(folder / name) in message
    assert function is other_domain or "another file than the folder's weights" in message


def test_graphs_of_a_newer_version_are_not_used(folder: Path) -> None:
    path = folder / "graphs.json"
    content = {"format": 2, "grid": {"rows": 2, "columns": 3}, "hard_attention": None}
    path.write_text(json.dumps(json.loads(path.read_text()) | content))
    write_manifest(folder)
    assert Captioner.from_pretrained(folder, device="cpu").engine.name == "torch"
