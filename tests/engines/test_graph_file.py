"""Graphs of a model folder: what they may name, and whether they fit the folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import tiny
from onnx import TensorProto, helper

from captioner import Captioner
from captioner.checkpoint import GRAPHS, write_manifest
from captioner.errors import CheckpointError


@pytest.fixture
def folder(model_with_graphs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_with_graphs, tmp_path / "model"))


def caption(folder: Path) -> None:
    """Caption a photo by the folder's graphs, which its manifest is made to agree with."""
    write_manifest(folder)
    Captioner.from_pretrained(folder, engine="runtime").caption(tiny.photo(1)[0])


def sentence(folder: Path) -> str:
    """The one sentence that refuses the folder."""
    with pytest.raises(CheckpointError) as caught:
        caption(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    assert len(message) < 600
    return message


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


@pytest.mark.parametrize(
    ("name", "location"), [(GRAPHS[0], "../secret"), (GRAPHS[1], ""), (GRAPHS[2], "/etc/passwd")]
)
def test_a_graph_names_no_file_but_the_weights(folder: Path, name: str, location: str) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    (folder.parent / "secret").write_bytes(weights)

    def elsewhere(model: Any) -> None:
        next(e for e in named(model) if e.key == "location").value = location

    change(folder / name, elsewhere)
    assert "another file than the folder's weights" in sentence(folder)


def test_a_constant_names_no_other_file_either(folder: Path) -> None:
    def constant(model: Any) -> None:
        tensor = TensorProto(name="c", dims=[4], data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../secret")
        model.graph.node.append(helper.make_node("Constant", [], ["c"], value=tensor))

    change(folder / "encoder.onnx", constant)
    assert "another file than the folder's weights" in sentence(folder)


def test_operators_of_other_domains_are_refused_in_a_branch_too(folder: Path) -> None:
    def foreign(model: Any) -> None:
        model.graph.node[0].domain = "org.openvinotoolkit"

    def foreign_in_a_branch(model: Any) -> None:
        node = helper.make_node("Identity", ["go"], ["on"], domain="elsewhere")
        body = helper.make_graph([node], "body", [], [])
        model.graph.node.append(helper.make_node("If", ["go"], ["on"], then_branch=body))

    whole = (folder / "encoder.onnx").read_bytes()
    for what in (foreign, foreign_in_a_branch):
        (folder / "encoder.onnx").write_bytes(whole)
        change(folder / "encoder.onnx", what)
        assert "another domain" in sentence(folder)


def swap(folder: Path) -> None:
    content = (folder / "step.onnx").read_bytes()
    (folder / "step.onnx").write_bytes((folder / "prepare.onnx").read_bytes())
    (folder / "prepare.onnx").write_bytes(content)


def rename_an_output(folder: Path) -> None:
    def rename(model: Any) -> None:
        for node in model.graph.node:
            for place, name in enumerate(node.output):
                node.output[place] = "others" if name == "logits" else name
        next(o for o in model.graph.output if o.name == "logits").name = "others"

    change(folder / "step.onnx", rename)


def describe(folder: Path, **changed: Any) -> None:
    path = folder / "graphs.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


@pytest.mark.parametrize("damage", [swap, rename_an_output])
def test_graphs_that_do_not_fit_their_folder_are_refused(
    damage: Callable[[Path], None], folder: Path
) -> None:
    damage(folder)
    sentence(folder)


def test_graphs_of_a_newer_version_are_not_used(folder: Path) -> None:
    describe(folder, format=2, grid={"rows": 2, "columns": 3}, hard_attention=None)
    write_manifest(folder)
    assert Captioner.from_pretrained(folder, device="cpu").engine.name == "torch"
