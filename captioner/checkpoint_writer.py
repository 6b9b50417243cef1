"""Writing model folders and training state: completely or not at all.

All functions raise a CheckpointError that says what cannot be written, and why.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner import checkpoint
from captioner.config import ModelConfig, to_yaml
from captioner.data.vocabulary import Tokenizer, Vocabulary
from captioner.errors import CheckpointError

if TYPE_CHECKING:
    import torch

    from captioner.models.model import CaptionModel


def check_absent(folder: Path) -> None:
    """Refuse to write to a folder that is there."""
    if os.path.exists(folder):  # Path.exists raises for a name that no file can have
        raise CheckpointError(f"{folder}: already exists; name another folder")


def save_model(
    folder: Path,
    model: CaptionModel,
    config: ModelConfig,
    vocabulary: Vocabulary,
    *,
    card: str,
    dtype: torch.dtype | None = None,
    training_state: dict[str, Any] | None = None,
    extra_files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a model folder next to `folder` and rename it into place.

    Args:
        folder: A folder that was there is kept as `previous` next to it when training state is
            saved (so that a damaged checkpoint does not end a run), else replaced.
        config: Settings of inference are saved, those of training not.
        dtype: Type of the floating-point weights in the file; None is float32.
        extra_files: Further files by name, such as a calibrator.
    """
    import torch
    from safetensors.torch import save

    if model.encoder.is_folded:
        raise CheckpointError(
            "the model is a captioner's copy for inference, whose batch norms are folded; save one "
            "that captioner.checkpoint.load_model returned"
        )
    dtype = dtype or torch.float32
    inference = ModelConfig(**{f.name: getattr(config, f.name) for f in fields(ModelConfig)})
    with _replacing_folder(folder, keep=training_state is not None) as temporary:
        # save_file would make a file that only its owner can read
        weights = save(_distinct_weights(model, dtype), metadata={"format": "pt"})
        (temporary / checkpoint.WEIGHTS).write_bytes(weights)
        (temporary / checkpoint.CONFIG).write_text(to_yaml(inference), encoding="utf-8")
        vocabulary.save(temporary / checkpoint.VOCABULARY)
        if vocabulary.tokenizer.name != Tokenizer.name:
            vocabulary.tokenizer.save(temporary / checkpoint.TOKENIZER)
        (temporary / checkpoint.CARD).write_text(card, encoding="utf-8")
        for name, content in (extra_files or {}).items():
            (temporary / name).write_bytes(content)
        if training_state is not None:
            buffer = io.BytesIO()  # given a file, torch.save hides the disk's error behind its own
            torch.save(training_state, buffer)
            (temporary / checkpoint.STATE).write_bytes(buffer.getbuffer())


def _distinct_weights(model: CaptionModel, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the state with each shared tensor once, floats in `dtype`."""
    state: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, value in model.state_dict().items():
        if value.numel() > 1 and value.data_ptr() in seen:
            continue
        seen.add(value.data_ptr())
        value = value.detach().cpu()
        state[name] = (value.to(dtype) if value.is_floating_point() else value).contiguous()
    return state


def read_extra_files(folder: Path) -> dict[str, bytes]:
    """Return a verified folder's files of other modules; graphs belong to its weights."""
    names = [name for name in checkpoint.file_sums(folder) if name not in checkpoint.OWN_FILES]
    return {name: (folder / name).read_bytes() for name in names}


def add_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Add files to a model folder, or replace them, with a manifest that agrees.

    The folder is replaced as a whole. Other files in it stay, and the manifest does not list them.
    """
    sums = checkpoint.verify(folder)
    with _replacing_folder(folder, keep=False) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)
        for name, content in files.items():
            (temporary / name).write_bytes(content)
        write_manifest(temporary, {*sums, *files})


def copy_model(source: Path, folder: Path) -> None:
    """Write the files that a model folder's manifest lists, and its card, into another folder."""
    with _replacing_folder(folder, keep=False) as temporary:
        for name in (*checkpoint.file_sums(source), checkpoint.CARD):
            if (source / name).is_file():
                shutil.copyfile(source / name, temporary / name)


@contextmanager
def _replacing_folder(folder: Path, *, keep: bool) -> Iterator[Path]:
    """Make a folder that, once filled, gets a manifest and takes the place of `folder`.

    With `keep` the earlier one stays as `previous`; if the disk is full, it stays as it was.
    """
    folder = Path(os.path.abspath(folder))  # "." has no name
    temporary = folder.with_name(f".{folder.name}.writing")
    # A folder to remove is renamed first, because a kill would leave half of it.
    aside = folder.with_name("previous" if keep else f".{folder.name}.old")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if not (temporary / checkpoint.MANIFEST).exists():
            write_manifest(temporary)
        replaces = folder.exists()
        if replaces:
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(folder, aside)
        try:
            os.replace(temporary, folder)
        except BaseException:
            if replaces:
                os.replace(aside, folder)
            raise
        _fsync(folder.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)  # or it would keep a full disk full
        raise CheckpointError(
            f"{folder}: the checkpoint cannot be written ({error.strerror or error}); "
            "free some disk or choose another output folder"
        ) from None
    if not keep:
        shutil.rmtree(aside, ignore_errors=True)


def _fsync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    if sys.platform == "win32":  # cannot open folders, nor sync files opened for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_manifest(folder: Path, names: Collection[str] | None = None) -> None:
    """Write the manifest of a folder's files, and wait until everything is on the disk.

    Args:
        names: The files that it lists; None lists all. Never the card, which people edit.
    """
    if names is None:
        names = [path.name for path in folder.iterdir() if path.name != checkpoint.MANIFEST]
    names = sorted(names)
    sums = {name: checkpoint.sha256(folder / name) for name in names if name != checkpoint.CARD}
    content = {"format": checkpoint.FORMAT, "sha256": sums}
    (folder / checkpoint.MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")
    for name in (*names, checkpoint.MANIFEST, "."):
        _fsync(folder / name)
