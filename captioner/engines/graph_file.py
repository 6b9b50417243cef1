"""What an ONNX file names, read before OpenVINO opens it.

An ONNX file is a protobuf message: fields with a number and a value, some of which are messages
again. Only those that matter here are read, so that no library is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# Numbers of fields, of onnx.proto.
_GRAPH = 7  # of a model
_NODE, _INITIALIZER = 1, 5  # of a graph
_ATTRIBUTE, _DOMAIN = 5, 7  # of a node
_TENSORS, _SUBGRAPHS = (5, 10), (6, 11)  # of an attribute
_EXTERNAL_DATA = 13  # of a tensor
_KEY, _VALUE = 1, 2  # of an entry of external data


def check_graph_file(path: Path, weights: str) -> None:
    """Refuse operators that are not ONNX's own, and weights in another file than the folder's.

    Args:
        path: An ONNX file.
        weights: Name of the file that its tensors may be in.

    Raises:
        ValueError: Says what is wrong.
    """
    for number, value in _fields(path.read_bytes()):
        if number == _GRAPH:
            _check_graph(value, weights.encode())


def _check_graph(graph: bytes, weights: bytes) -> None:
    for number, value in _fields(graph):
        if number == _INITIALIZER:
            _check_tensor(value, weights)
        for part, content in _fields(value) if number == _NODE else ():
            if part == _DOMAIN and content not in (b"", b"ai.onnx"):
                raise ValueError("it holds operators of another domain than ONNX's own")
            for field, inner in _fields(content) if part == _ATTRIBUTE else ():
                if field in _TENSORS:
                    _check_tensor(inner, weights)
                elif field in _SUBGRAPHS:
                    _check_graph(inner, weights)


def _check_tensor(tensor: bytes, weights: bytes) -> None:
    for number, value in _fields(tensor):
        entry = dict(_fields(value)) if number == _EXTERNAL_DATA else {}
        if entry.get(_KEY) == b"location" and entry.get(_VALUE, b"") != weights:
            raise ValueError("it names another file than the folder's weights")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the value of each field whose value is bytes; skip the others."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:  # a whole number
            _, place = _varint(message, place)
        elif kind == 2:  # bytes
            size, place = _varint(message, place)
            yield key >> 3, message[place : place + size]
            place += size
        elif kind in (1, 5):  # a fixed size
            place += 8 if kind == 1 else 4
        else:
            raise ValueError("it is no ONNX file")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return the whole number at a place, seven bits a byte, and the place behind it."""
    value = shift = 0
    for byte in message[place : place + 10]:
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
    raise ValueError("it is no ONNX file")
