"""Model folders, verified before use; `checkpoint_writer` saves them.

A folder holds the files named below and those of other modules, such as a calibrator: all that
inference needs, and nothing that can run code. Its manifest lists each but the card by SHA-256.
All functions raise a CheckpointError that says what cannot be read, and why.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.config import ModelConfig, from_yaml
from captioner.data.vocabulary import Vocabulary, load_tokenizer
from captioner.errors import CheckpointError, error_summary

if TYPE_CHECKING:
    import torch

    from captioner.models.model import CaptionModel

WEIGHTS, CONFIG, VOCABULARY = "model.safetensors", "config.yaml", "vocabulary.json"
CARD, STATE, MANIFEST = "README.md", "training_state.pt", "manifest.json"  # STATE: of `last`
TOKENIZER = "tokenizer.json"  # absent: words
# ONNX graphs (captioner/export.py), and what they were made of.
GRAPHS, DESCRIPTION = ("encoder.onnx", "prepare.onnx", "step.onnx"), "graphs.json"
OWN_FILES = {WEIGHTS, CONFIG, VOCABULARY, TOKENIZER, STATE, DESCRIPTION, *GRAPHS}
FORMAT = 1  # version of the folder's format; a manifest without one is of version 1
MODELS = Path(__file__).parent / "bundled"  # the bundled models
CHECKPOINTS = ("last", "previous")  # of a run, the newest first


def bundled_models() -> list[str]:
    """Return the names of the models that ship in the package."""
    return sorted(path.parent.name for path in MODELS.glob(f"*/{MANIFEST}"))


def model_folder(model: str | Path) -> Path:
    """Return the folder of a bundled model by name, of a model or of a run's best model by path."""
    if str(model) in bundled_models() and (isinstance(model, str) or not model.exists()):
        return MODELS / model
    folder = Path(model)
    if not os.path.exists(folder):  # Path.exists raises for a name that no file can have
        raise CheckpointError(
            f"there is no model '{model}'; the bundled ones are "
            f"{', '.join(bundled_models()) or 'none'}, or name a model folder"
        )
    best = folder / "best"
    return best if not (folder / MANIFEST).exists() and (best / MANIFEST).exists() else folder


def load_model(
    folder: Path, device: torch.device | str = "cpu"
) -> tuple[CaptionModel, ModelConfig, Vocabulary]:
    """Read a model folder into a float32 model in evaluation mode."""
    from captioner.models.build import build_model

    verify(folder)
    vocabulary, config = load_vocabulary(folder), load_config(folder)
    with readable(folder):
        model = build_model(config, len(vocabulary), pretrained=False)
        load_weights(model, folder)
    return model.eval().to(device), config, vocabulary


def load_config(folder: Path) -> ModelConfig:
    """Read the settings of a verified folder; a CheckpointError says why they cannot be read."""
    with readable(folder / CONFIG):
        return from_yaml(ModelConfig, (folder / CONFIG).read_text(encoding="utf-8"))


def load_weights(model: CaptionModel, folder: Path) -> None:
    """Fill the model from a verified folder, converting to its types."""
    from safetensors.torch import load_model as load_state

    with readable(folder / WEIGHTS):
        missing, unexpected = load_state(model, folder / WEIGHTS, strict=False)
        if odd := [*sorted(missing), *unexpected]:
            raise ValueError(f"{len(odd)} weights do not match, the first is {odd[0]}")


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Read the weights of a verified folder by their names."""
    from safetensors.torch import load_file

    with readable(folder / WEIGHTS):
        return load_file(folder / WEIGHTS)


def load_vocabulary(folder: Path) -> Vocabulary:
    """Read the vocabulary of a verified folder, with its tokenizer."""
    with readable(folder / VOCABULARY):
        return Vocabulary.load(folder / VOCABULARY, load_tokenizer(folder / TOKENIZER))


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Context in which a file or folder is read: a CheckpointError says why it cannot be."""
    try:
        yield
    except CheckpointError:
        raise
    # Its manifest agrees, so another version wrote it; torch.load may then raise anything.
    except Exception as error:  # noqa: BLE001
        # After its first sentence, torch's message goes on with advice to programmers.
        raise CheckpointError(
            f"{path}: cannot be read ({error_summary(error, part='sentence')}); it was made by "
            "another version of captioner: use that, or another model"
        ) from None


def verify(folder: Path, *, needs_state: bool = False) -> dict[str, str]:
    """Compare every file with the manifest's sums, and return them; a checkpoint `needs_state`."""
    sums = file_sums(folder)
    for name in (WEIGHTS, CONFIG, VOCABULARY, *([STATE] if needs_state else ())):
        if name not in sums:
            raise CheckpointError(f"{folder}: not complete, {name} is not in {MANIFEST}")
    for name, expected in sums.items():
        try:
            digest = sha256(folder / name)
        except OSError as error:
            raise CheckpointError(
                f"{folder / name}: cannot be read ({error.strerror}); fetch it again"
            ) from None
        if digest != expected:
            raise CheckpointError(
                f"{folder / name}: damaged or edited, its content does not match {MANIFEST}; fetch "
                "the model again, use another checkpoint, or undo the edit: captioner export makes "
                "a model folder with other settings of the search"
            )
    return sums


def file_sums(folder: Path) -> dict[str, str]:
    """Return the names and SHA-256 sums of a folder's files by its manifest."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version, sums = int(manifest.get("format", FORMAT)), dict(manifest["sha256"])
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(
            f"{folder}: not a model folder, {MANIFEST} is missing; name a folder that holds it, "
            "such as RUN/best, or RUN/last of a run that has not validated yet"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        raise CheckpointError(f"{path}: damaged; fetch the model again") from None
    if version > FORMAT:
        raise CheckpointError(f"{folder}: made by a newer version of captioner; update captioner")
    for name in sums:
        # no path, no drive, no stream, nothing hidden
        if not re.fullmatch(r"\w[\w.+-]{0,99}", name):
            raise CheckpointError(
                f"{path}: names {name[:100]!r}, no file of its folder; do not use it"
            )
    return sums


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
