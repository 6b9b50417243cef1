"""Model folders and training state: save whole or not at all, verify before use.

A model folder holds `model.safetensors`, `config.yaml`, `vocabulary.json`, `README.md` (the model
card) and `manifest.json` with the SHA-256 sum of each but the card: all that inference needs, and
nothing that can run code. A run's `last` folder holds `training_state.pt` too.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from captioner.config import ModelConfig, from_yaml, one_line, to_yaml
from captioner.data.tokenizer import WordTokenizer, load_tokenizer
from captioner.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from captioner.errors import CheckpointError, ConfigError
from captioner.models.build import CaptionModel, build_model

WEIGHTS, CONFIG, VOCABULARY, CARD = (
    "model.safetensors",
    "config.yaml",
    "vocabulary.json",
    "README.md",
)
STATE, MANIFEST = "training_state.pt", "manifest.json"
TOKENIZER = "tokenizer.json"  # absent: words
# Weights with a row for each word; the last layer's weight may be tied to the embedding.
EMBEDDING, OUTPUT_WEIGHT, OUTPUT_BIAS = (
    "decoder.embedding.weight",
    "decoder.vocabulary.weight",
    "decoder.vocabulary.bias",
)
MODELS = Path(__file__).parent / "bundled"  # those that ship in the package
CHECKPOINTS = ("last", "previous")  # of a run, the newest first


def bundled_models() -> list[str]:
    """Names of the models that ship in the package."""
    if not MODELS.is_dir():
        return []
    return sorted(folder.name for folder in MODELS.iterdir() if (folder / MANIFEST).is_file())


def model_folder(model: str | Path) -> Path:
    """Folder of a bundled model by name, of a model by path, or of a run's best model."""
    if isinstance(model, str) and model in bundled_models():
        return MODELS / model
    folder = Path(model)
    if not os.path.exists(folder):  # Path.exists raises for a name that no file can have
        if isinstance(model, Path):
            raise CheckpointError(f"{model}: no such model folder")
        raise CheckpointError(
            f"there is no model '{model}'; the bundled ones are "
            f"{', '.join(bundled_models()) or 'none'}, or name a model folder"
        )
    if not (folder / MANIFEST).exists() and (folder / "best" / MANIFEST).exists():
        return folder / "best"
    return folder


def save_model(
    folder: Path,
    model: CaptionModel,
    config: ModelConfig,
    vocabulary: Vocabulary,
    *,
    card: str,
    dtype: torch.dtype = torch.float32,
    training_state: dict[str, Any] | None = None,
) -> None:
    """Write a model folder beside `folder` and rename it into place.

    A folder that was there is kept as `previous` next to it when training state is saved (so that
    a damaged checkpoint does not end a run), else replaced.

    Raises:
        CheckpointError: the disk cannot hold it.
    """
    temporary = folder.with_name(f".{folder.name}.writing")
    inference = ModelConfig(
        config.preprocess, config.encoder, config.attention, config.decoder, config.decoding
    )
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        # save_file would make a file that only its owner can read
        (temporary / WEIGHTS).write_bytes(save(_weights(model, dtype), metadata={"format": "pt"}))
        (temporary / CONFIG).write_text(to_yaml(inference), encoding="utf-8")
        vocabulary.save(temporary / VOCABULARY)
        if (
            not isinstance(vocabulary.tokenizer, WordTokenizer)
            or vocabulary.tokenizer.name != "words"
        ):
            vocabulary.tokenizer.save(temporary / TOKENIZER)
        (temporary / CARD).write_text(card, encoding="utf-8")
        if training_state is not None:
            buffer = io.BytesIO()  # given a file, torch.save hides the disk's error behind its own
            torch.save(training_state, buffer)
            (temporary / STATE).write_bytes(buffer.getbuffer())
        _seal(temporary)
        _rename_into_place(temporary, folder, keep=training_state is not None)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)  # or it fills the disk that is full
        raise CheckpointError(
            f"{folder}: the checkpoint cannot be written ({error.strerror or error}); "
            "free some disk or choose another output folder"
        ) from None


def load_model(
    folder: Path, device: torch.device | str = "cpu"
) -> tuple[CaptionModel, ModelConfig, Vocabulary]:
    """Read a model folder into a float32 model in evaluation mode.

    Raises:
        CheckpointError: the folder is missing, incomplete, damaged, or of another version.
    """
    verify(folder)
    try:
        config = from_yaml(ModelConfig, (folder / CONFIG).read_text(encoding="utf-8"))
        vocabulary = load_vocabulary(folder)
        model = build_model(config, len(vocabulary), pretrained=False)
        load_weights(model, folder)
    except (
        ConfigError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,  # torch's word for weights of another shape
        SafetensorError,
    ) as error:
        raise CheckpointError(
            f"{folder}: the model cannot be built ({one_line(str(error))}); "
            "it was made by another version of captioner"
        ) from None
    return model.eval().to(device), config, vocabulary


def load_weights(model: CaptionModel, folder: Path) -> None:
    """Fill the model, converting to its types.

    Raises:
        ValueError: the file does not hold exactly this model's weights.
    """
    stored = load_file(folder / WEIGHTS)
    problems = model.load_state_dict(stored, strict=False)
    tied = set(model.state_dict()) - set(_weights(model, torch.float32))
    missing = [name for name in problems.missing_keys if name not in tied]
    if missing or problems.unexpected_keys:
        odd = [*missing, *problems.unexpected_keys]
        raise ValueError(f"{len(odd)} weights do not match, the first is {odd[0]}")


@dataclass(frozen=True)
class PretrainedReport:
    """Which of a model's weights were taken from a folder, by name, and which were not.

    Args:
        folder: The folder.
        taken: Weights of the model that have the folder's values now.
        absent: Weights of the model that the folder does not have; they stay as initialised.
        other_shape: Weights that have another shape there; they stay as initialised.
        unused: Weights of the folder that the model does not have.
        new_words: Words of the model that the folder's vocabulary does not have.
    """

    folder: Path
    taken: list[str]
    absent: list[str]
    other_shape: list[str]
    unused: list[str]
    new_words: int

    def sentences(self) -> list[str]:
        """Return what a user must know: nothing if every weight was taken and no word is new."""
        said = []
        total = len(self.taken) + len(self.absent) + len(self.other_shape)
        if len(self.taken) < total or self.unused:
            reasons = {
                "not in it and left as initialised": self.absent,
                "of another shape in it and left as initialised": self.other_shape,
                "in it alone and not used": self.unused,
            }
            parts = [f"{what}: {_by_module(names)}" for what, names in reasons.items() if names]
            said.append(
                f"{self.folder}: {len(self.taken)} of {total} weights taken; {'; '.join(parts)}"
            )
        if self.new_words:
            said.append(
                f"{self.folder}: {self.new_words} words are new to its vocabulary and begin near "
                "its rare words"
            )
        return said


def load_pretrained(
    model: CaptionModel, vocabulary: Vocabulary, folder: Path, *, seed: int = 0
) -> PretrainedReport:
    """Fill a model that is to be trained with the weights of a verified folder.

    Weights are taken that have the same name and shape. Rows of the embedding and of the output
    layer are taken word by word, so that the vocabulary may have other words, in another order. A
    new word's row is drawn around the mean of the folder's rarer half of words, with half their
    standard deviation; its output bias is their mean.

    A half-precision weight that is the rounding of the one already there leaves it as it is: the
    frozen stages of an exported model stay those that features were cached of.

    Args:
        model: The model, in place.
        vocabulary: The model's words.
        folder: A verified model folder.
        seed: Seed of the rows of new words.
    """
    known = load_vocabulary(folder)
    stored = _read_weights(folder)
    own = model.state_dict()
    if OUTPUT_WEIGHT not in stored and EMBEDDING in stored:  # tied there
        stored[OUTPUT_WEIGHT] = stored[EMBEDDING]
    if vocabulary.tokens != known.tokens:
        rows = {token: row for row, token in enumerate(known.tokens)}
        index = torch.tensor([rows.get(token, -1) for token in vocabulary.tokens])
        generator = torch.Generator().manual_seed(seed)
        for name in (EMBEDDING, OUTPUT_WEIGHT, OUTPUT_BIAS):
            if name in stored and len(stored[name]) == len(known):
                # Started anew for each, so that tied tables stay alike.
                stored[name] = _rows_of_words(stored[name], index, generator.manual_seed(seed))
    matching = {
        name: value
        for name, value in stored.items()
        if name in own and own[name].shape == value.shape
    }
    other = {
        name: value
        for name, value in matching.items()
        if not torch.equal(own[name].to("cpu", value.dtype), value)
    }
    model.load_state_dict(other, strict=False)
    pointers = {own[name].data_ptr() for name in matching}  # tied weights are stored once
    taken = [name for name, value in own.items() if value.data_ptr() in pointers]
    left = [name for name in own if name not in set(taken)]
    return PretrainedReport(
        folder=folder,
        taken=taken,
        absent=[name for name in left if name not in stored],
        other_shape=[name for name in left if name in stored],
        unused=[name for name in stored if name not in own],
        new_words=len(set(vocabulary.tokens) - set(known.tokens)),
    )


def _rows_of_words(table: Tensor, index: Tensor, generator: torch.Generator) -> Tensor:
    """Return rows [V, ...] of a table [V', ...] by index; -1 draws a row like its rarer half's."""
    rows: Tensor = table[index.clamp(min=0)].clone()
    rare = table[(len(table) + len(SPECIAL_TOKENS)) // 2 :].float()
    new = index < 0
    drawn = rare.mean(0).expand(int(new.sum()), *table.shape[1:]).clone()
    if table.dim() > 1 and len(rare) > 1:
        noise = torch.randn(drawn.shape, generator=generator)
        drawn += 0.5 * rare.std(0) * noise
    rows[new] = drawn.to(table.dtype)
    return rows


def _by_module(names: list[str]) -> str:
    """Sum up names of weights: `decoder.attention.score (4)`."""
    counts = Counter(name.rpartition(".")[0] for name in names)
    return ", ".join(f"{module} ({count})" for module, count in counts.items())


def load_vocabulary(folder: Path) -> Vocabulary:
    """Read the vocabulary of a verified folder, with its tokenizer.

    Raises:
        CheckpointError: It cannot be read.
    """
    try:
        return Vocabulary.load(folder / VOCABULARY, load_tokenizer(folder / TOKENIZER))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
        raise CheckpointError(
            f"{folder}: its vocabulary cannot be read ({one_line(str(error))}); it was made by "
            "another version of captioner"
        ) from None


def _read_weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / WEIGHTS)


def load_training_state(folder: Path) -> dict[str, Any]:
    """Read the training state of a verified folder."""
    return torch.load(folder / STATE, map_location="cpu", weights_only=True)


def newest_checkpoint(run: Path) -> Path:
    """The run's newest whole checkpoint: `last`, else the one before it.

    Raises:
        CheckpointError: there is none.
    """
    reasons = []
    for name in CHECKPOINTS:
        try:
            verify(run / name, needs_state=True)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        if reasons:
            print(f"{reasons[0]}; going on from {run / name}", file=sys.stderr)
        return run / name
    raise CheckpointError(f"{run}: no checkpoint to resume from ({'; '.join(reasons)})")


def verify(folder: Path, *, needs_state: bool = False) -> None:
    """Compare every file with the manifest's sums.

    Raises:
        CheckpointError: a file is missing or its content is not what was written.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such model folder")
    try:
        sums = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["sha256"]
        sums = dict(sums.items())
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder}: not a model folder, {MANIFEST} is missing; "
            f"name a folder such as RUN/best that holds {WEIGHTS}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        raise CheckpointError(f"{folder / MANIFEST}: damaged; fetch the model again") from None
    for name in (WEIGHTS, CONFIG, VOCABULARY, *((STATE,) if needs_state else ())):
        if name not in sums:
            raise CheckpointError(f"{folder}: not complete, {name} is not in {MANIFEST}")
    for name, expected in sums.items():
        try:
            found = _sha256(folder / name)
        except OSError as error:
            raise CheckpointError(
                f"{folder / name}: cannot be read ({error.strerror}); fetch the model again"
            ) from None
        if found != expected:
            raise CheckpointError(
                f"{folder / name}: damaged, its content does not match {MANIFEST}; "
                "fetch the model again or use another checkpoint"
            )


def _weights(model: CaptionModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """State with each shared tensor once, floats in `dtype`."""
    state: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in model.state_dict().items():
        if value.numel() > 1 and value.data_ptr() in seen:
            continue
        seen.add(value.data_ptr())
        value = value.detach().cpu()
        state[name] = (value.to(dtype) if value.is_floating_point() else value).contiguous()
    return state


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _seal(folder: Path) -> None:
    """Write the manifest and force everything to disk."""
    names = sorted(path.name for path in folder.iterdir())
    sums = {name: _sha256(folder / name) for name in names if name != CARD}  # people edit the card
    (folder / MANIFEST).write_text(json.dumps({"sha256": sums}, indent=1), encoding="utf-8")
    for name in (*names, MANIFEST, "."):
        _fsync(folder / name)


def _rename_into_place(temporary: Path, folder: Path, *, keep: bool) -> None:
    aside = folder.with_name("previous" if keep else f".{folder.name}.old")
    try:
        if folder.exists():
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(folder, aside)
        os.replace(temporary, folder)
    except BaseException:
        if not folder.exists() and aside.exists():
            os.replace(aside, folder)
        raise
    _fsync(folder.parent)
    if not keep:
        shutil.rmtree(aside, ignore_errors=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
