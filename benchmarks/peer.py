"""The peer, sgrvinod's a-PyTorch-Tutorial-to-Image-Captioning, from a checkout of the user's.

Its files are executed as they are, but for what current libraries refuse: imports of SciPy
functions that are gone, which a grid in memory does not need, and an index that became a float.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


def decoder_class(checkout: Path, device: torch.device) -> Any:
    """Its DecoderWithAttention."""
    module = types.ModuleType("peer_models")
    source = (checkout / "models.py").read_text(encoding="utf-8")
    exec(compile(source, str(checkout / "models.py"), "exec"), module.__dict__)
    module.__dict__["device"] = device
    return module.__dict__["DecoderWithAttention"]


def beam_search(
    checkout: Path, decoder: nn.Module, vocabulary_size: int, device: torch.device
) -> Callable[[Tensor, int], list[int]]:
    """Its search of one photo, given its grid [1, rows, columns, D]: a list of words."""
    source = (checkout / "caption.py").read_text(encoding="utf-8")
    function = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "caption_image_beam_search"
    )
    text = ast.unparse(function).replace("top_k_words / vocab_size", "top_k_words // vocab_size")
    words = {f"word {n}": n for n in range(vocabulary_size - 2)}
    words |= {"<start>": vocabulary_size - 2, "<end>": vocabulary_size - 1}
    black = np.zeros((8, 8, 3))
    grids: list[Tensor] = []
    names: dict[str, Any] = {
        "torch": torch,
        "np": np,
        "F": F,
        "device": device,
        "imread": lambda _: black,
        "imresize": lambda image, _: image,
        "transforms": types.SimpleNamespace(
            Normalize=lambda **_: None, Compose=lambda _: lambda image: image
        ),
    }
    exec(compile(text, str(checkout / "caption.py"), "exec"), names)

    def search(grid: Tensor, beam_size: int) -> list[int]:
        grids[:] = [grid]
        with torch.no_grad():
            found, _ = names["caption_image_beam_search"](
                lambda _: grids[0], decoder, "", words, beam_size
            )
        return list(found)

    return search


def check(checkout: Path) -> None:
    if not (checkout / "models.py").is_file() or not (checkout / "caption.py").is_file():
        sys.exit(
            f"{checkout} is no checkout of a-PyTorch-Tutorial-to-Image-Captioning: it has no "
            "models.py and caption.py"
        )
