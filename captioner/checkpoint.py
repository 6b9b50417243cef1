"""Model folders and training state: saved completely or not at all, verified before use.

A model folder holds `model.safetensors`, `config.yaml`, `vocabulary.json`, `README.md` (the model
card) and `manifest.json` with the SHA-256 sum of each but the card: all that inference needs, and
nothing that can run code. Optional files are `tokenizer.json` (absent: words) and those of other
modules, such as a calibrator, and ONNX graphs. A run's `last` folder holds `training_state.pt` too.

A folder may come from a stranger, with a manifest that agrees with it: only regular files in the
folder are read, and sizes are checked before anything is built.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import shutil
import stat
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from safetensors import SafetensorError, safe_open

from captioner.config import ModelConfig, from_yaml, to_yaml
from captioner.data.tokenizer import WordTokenizer, load_tokenizer
from captioner.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from captioner.errors import CaptionerError, CheckpointError, ConfigError, error_summary
from captioner.files import remove_temporary_files

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from captioner.models.model import CaptionModel

WEIGHTS, CONFIG, VOCABULARY = "model.safetensors", "config.yaml", "vocabulary.json"
CARD, STATE, MANIFEST = "README.md", "training_state.pt", "manifest.json"
TOKENIZER = "tokenizer.json"  # absent: words
# ONNX graphs (captioner/export.py), and what they were made of.
GRAPHS, DESCRIPTION = ("encoder.onnx", "prepare.onnx", "step.onnx"), "graphs.json"
FORMAT = 1  # version of the folder's format; a manifest without one is of version 1
# Weights with a row for each word; the last layer's weight may be tied to the embedding.
EMBEDDING = "decoder.embedding.weight"
OUTPUT_WEIGHT, OUTPUT_BIAS = "decoder.vocabulary.weight", "decoder.vocabulary.bias"
MODELS = Path(__file__).parent / "bundled"  # the bundled models
CHECKPOINTS = ("last", "previous")  # of a run, the newest first

# Bounds on what a folder may make the reader do.
_MAX_BYTES = {
    MANIFEST: 2**20,
    CONFIG: 2**20,
    VOCABULARY: 2**26,
    TOKENIZER: 2**26,
    WEIGHTS: 2**34,  # a sparse file is sent at once and would be read for hours
    STATE: 2**36,
}
_MAX_EXTRA_BYTES = 2**29
_MAX_FILES = 100
_MAX_PHRASES = 100
_MAX_YAML_DEPTH = 8
# A backbone is built with its classifier, which the grid does not use: VGG-19's has 120 million
# parameters.
_UNUSED_ELEMENTS, _UNUSED_TENSORS = 150_000_000, 1000


def bundled_models() -> list[str]:
    """Return the names of the models that ship in the package."""
    if not MODELS.is_dir():
        return []
    return sorted(folder.name for folder in MODELS.iterdir() if (folder / MANIFEST).is_file())


def model_folder(model: str | Path) -> Path:
    """Return the folder of a bundled model by name, of a model by path, or of a run's best model.

    Raises:
        CheckpointError: There is no such model.
    """
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
    dtype: torch.dtype | None = None,
    training_state: dict[str, Any] | None = None,
    extra_files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a model folder next to `folder` and rename it into place.

    Args:
        folder: A folder that was there is kept as `previous` next to it when training state is
            saved (so that a damaged checkpoint does not end a run), else replaced.
        model: Its weights are saved, tied ones once.
        config: Settings of inference are saved, those of training not.
        vocabulary: Saved with its tokenizer.
        card: Text of README.md.
        dtype: Type of the floating-point weights in the file; None is float32.
        training_state: Saved as training_state.pt.
        extra_files: Further files by name, such as a calibrator.

    Raises:
        CheckpointError: The disk cannot hold it.
    """
    import torch
    from safetensors.torch import save

    dtype = dtype or torch.float32
    inference = ModelConfig(
        config.preprocess, config.encoder, config.attention, config.decoder, config.decoding
    )
    with _replacing_folder(folder, keep=training_state is not None) as temporary:
        # save_file would make a file that only its owner can read
        (temporary / WEIGHTS).write_bytes(save(_weights(model, dtype), metadata={"format": "pt"}))
        (temporary / CONFIG).write_text(to_yaml(inference), encoding="utf-8")
        vocabulary.save(temporary / VOCABULARY)
        if vocabulary.tokenizer.name != WordTokenizer.name:
            vocabulary.tokenizer.save(temporary / TOKENIZER)
        (temporary / CARD).write_text(card, encoding="utf-8")
        for name, content in (extra_files or {}).items():
            (temporary / name).write_bytes(content)
        if training_state is not None:
            buffer = io.BytesIO()  # given a file, torch.save hides the disk's error behind its own
            torch.save(training_state, buffer)
            (temporary / STATE).write_bytes(buffer.getbuffer())


def stored_type(folder: Path) -> torch.dtype:
    """Return the type of a verified folder's first floating-point weight; float32 without one."""
    import torch

    with safe_open(folder / WEIGHTS, framework="pt") as file:
        kinds = (file.get_tensor(name).dtype for name in file.keys())  # noqa: SIM118
        return next((kind for kind in kinds if kind.is_floating_point), torch.float32)


def add_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Add files to a model folder, or replace them, with a manifest that agrees.

    The folder is replaced as a whole: it is complete at every moment. What else lies in it, such
    as somebody's notes, stays there, and the manifest does not list it.

    Raises:
        CheckpointError: The folder is damaged, or the disk cannot hold it.
    """
    verify(folder)
    with _replacing_folder(folder, keep=False) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)
        for name, content in files.items():
            (temporary / name).write_bytes(content)
        write_manifest(temporary, {*file_sums(folder), *files})


def read_extra_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a verified folder that belong to other modules, such as a calibrator.

    Graphs are left out: they are those of the folder's weights.
    """
    standard = {WEIGHTS, CONFIG, VOCABULARY, TOKENIZER, STATE, DESCRIPTION, *GRAPHS}
    return {
        name: (folder / name).read_bytes() for name in file_sums(folder) if name not in standard
    }


def load_model(
    folder: Path, device: torch.device | str = "cpu"
) -> tuple[CaptionModel, ModelConfig, Vocabulary]:
    """Read a model folder into a float32 model in evaluation mode.

    Raises:
        CheckpointError: The folder is missing, incomplete, damaged, of another version, or asks for
            more than a model folder may.
    """
    from captioner.models.build import build_model

    verify(folder)
    vocabulary = load_vocabulary(folder)
    try:
        config = _read_config(folder)
        with _bounded_by_weights(folder):
            model = build_model(config, len(vocabulary), pretrained=False)
        load_weights(model, folder)
    except (
        CaptionerError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        MemoryError,
        OSError,
        RuntimeError,  # by torch for weights of another shape, by Python for deep nesting
        SafetensorError,
    ) as error:
        raise CheckpointError(
            f"{folder}: the model cannot be built ({error_summary(error, max_length=500)}); "
            "it was made by another version of captioner"
        ) from None
    return model.eval().to(device), config, vocabulary


def load_config(folder: Path) -> ModelConfig:
    """Read the settings of a verified folder; a CheckpointError says why they cannot be read."""
    try:
        return _read_config(folder)
    except (ConfigError, ValueError, OSError) as error:
        reason = error_summary(error, max_length=500)
        raise CheckpointError(f"{folder / CONFIG}: {reason}") from None


def _read_config(folder: Path) -> ModelConfig:
    """Read config.yaml within bounds.

    Raises:
        ConfigError, ValueError: It does not hold a model's settings, or one is over its limit.
    """
    text = (folder / CONFIG).read_text(encoding="utf-8")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            depth += isinstance(event, yaml.events.CollectionStartEvent)
            depth -= isinstance(event, yaml.events.CollectionEndEvent)
            if depth > _MAX_YAML_DEPTH or isinstance(event, yaml.events.AliasEvent):
                raise ValueError(f"{CONFIG} is nested too deeply")
    except yaml.YAMLError as error:
        raise ValueError(f"{CONFIG}: {error}") from None
    config = from_yaml(ModelConfig, text)
    phrases = len(config.decoding.no_repeat_around)
    if phrases > _MAX_PHRASES:
        raise ValueError(
            f"phrases of decoding.no_repeat_around: {phrases} is over the limit of {_MAX_PHRASES} "
            "in a model folder"
        )
    return config


@contextmanager
def _bounded_by_weights(folder: Path) -> Iterator[None]:
    """Stop building a model that is clearly larger than the weights in the folder.

    Each parameter and buffer is counted when a module registers it, before it is filled, so that
    settings of a giant network cost neither its time nor its memory.

    Raises:
        RuntimeError: The model is larger.
    """
    from torch.nn.modules.module import (
        register_module_buffer_registration_hook,
        register_module_parameter_registration_hook,
    )

    elements, tensors = _UNUSED_ELEMENTS, _UNUSED_TENSORS
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            # Twice, because tied weights are stored once.
            elements += 2 * math.prod(file.get_slice(name).get_shape())
            tensors += 2
    thread = threading.get_ident()

    def count(module: nn.Module, name: str, value: Tensor | None) -> None:
        nonlocal elements, tensors
        if value is None or threading.get_ident() != thread:
            return
        elements -= value.numel()
        tensors -= 1
        if elements < 0 or tensors < 0:
            raise RuntimeError(f"{CONFIG} describes a larger model than {WEIGHTS} holds")

    hooks = (
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def load_weights(model: CaptionModel, folder: Path) -> None:
    """Fill the model, converting to its types.

    Raises:
        CheckpointError: The file is damaged, although the manifest agrees with it.
        ValueError: The file does not hold exactly this model's weights.
    """
    import torch

    own = model.state_dict()
    stored = _read_weights(folder, own)
    problems = model.load_state_dict(stored, strict=False)
    tied = set(own) - set(_weights(model, torch.float32))
    missing = [name for name in problems.missing_keys if name not in tied]
    if missing or problems.unexpected_keys:
        odd = [*missing, *problems.unexpected_keys]
        raise ValueError(f"{len(odd)} weights do not match, the first is {odd[0]}")


def _read_weights(folder: Path, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read the weights for a model whose own are given.

    Raises:
        CheckpointError: The file cannot be read, or holds integers for floating-point weights.
    """
    import torch
    from safetensors.torch import load_file

    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    try:
        stored: dict[str, Tensor] = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder / WEIGHTS}: the weights cannot be read "
            f"({error_summary(error, max_length=200)}); fetch the model again or use another "
            "checkpoint"
        ) from None
    for name, value in stored.items():
        if name in own and own[name].is_floating_point() != (value.dtype in floats):
            raise CheckpointError(
                f"{folder / WEIGHTS}: {name} is of type {value.dtype} instead of "
                f"{own[name].dtype}; fetch the model again or use another checkpoint"
            )
    return stored


@dataclass(frozen=True)
class PretrainedReport:
    """Which of a model's weights were taken from a folder, by name, and which were not.

    Args:
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
        """Return sentences for the user; none if every weight was taken and no word is new."""
        sentences = []
        total = len(self.taken) + len(self.absent) + len(self.other_shape)
        if len(self.taken) < total or self.unused:
            reasons = {
                "not in it and left as initialised": self.absent,
                "of another shape in it and left as initialised": self.other_shape,
                "in it alone and not used": self.unused,
            }
            parts = [f"{what}: {_by_module(names)}" for what, names in reasons.items() if names]
            sentences.append(
                f"{self.folder}: {len(self.taken)} of {total} weights taken; {'; '.join(parts)}"
            )
        if self.new_words:
            sentences.append(
                f"{self.folder}: {self.new_words} words are new to its vocabulary and begin near "
                "its rare words"
            )
        return sentences


def load_pretrained(
    model: CaptionModel, vocabulary: Vocabulary, folder: Path, *, seed: int = 0, only: str = ""
) -> PretrainedReport:
    """Fill a model that is to be trained with the weights of a verified folder.

    Weights are taken that have the same name and shape. Rows of the embedding and of the output
    layer are taken word by word, so that the vocabulary may have other words, in another order. A
    new word's row is drawn around the mean of the folder's rarer half of words, with half their
    standard deviation; its output bias is their mean.

    A half-precision weight that is the rounding of the one already there leaves it as it is: the
    frozen stages of an exported model stay those that features were cached of.

    Args:
        seed: Seed of the rows of new words.
        only: Take only weights whose names begin so, such as `encoder.`; the report is of these.

    Raises:
        CheckpointError: The file is damaged, although the manifest agrees with it.
    """
    import torch

    known = load_vocabulary(folder)
    own = {name: value for name, value in model.state_dict().items() if name.startswith(only)}
    stored = _read_weights(folder, own)
    stored = {name: value for name, value in stored.items() if name.startswith(only)}
    lost: list[str] = []
    if OUTPUT_WEIGHT not in stored and EMBEDDING in stored:  # tied there
        stored[OUTPUT_WEIGHT] = stored[EMBEDDING]
    elif {EMBEDDING, OUTPUT_WEIGHT} <= own.keys() & stored.keys() and (
        own[EMBEDDING].data_ptr() == own[OUTPUT_WEIGHT].data_ptr()
    ):
        del stored[EMBEDDING]  # of two tables where this model has one, the output layer's is taken
        lost.append(EMBEDDING)
    if vocabulary.tokens != known.tokens:
        rows = {token: row for row, token in enumerate(known.tokens)}
        index = torch.tensor([rows.get(token, -1) for token in vocabulary.tokens])
        generator = torch.Generator().manual_seed(seed)
        for name in (EMBEDDING, OUTPUT_WEIGHT, OUTPUT_BIAS):
            if name in stored and len(stored[name]) == len(known):
                # Seeded again for each table, so that tied tables stay equal.
                stored[name] = _rows_of_words(stored[name], index, generator.manual_seed(seed))
    matching = [name for name in stored if name in own and own[name].shape == stored[name].shape]
    with torch.no_grad():
        for name in matching:
            if not torch.equal(own[name].to("cpu", stored[name].dtype), stored[name]):
                own[name].copy_(stored[name])
    pointers = {own[name].data_ptr() for name in matching}  # tied weights are stored once
    taken = [name for name, value in own.items() if value.data_ptr() in pointers]
    left = [name for name in own if name not in set(taken)]
    return PretrainedReport(
        folder=folder,
        taken=taken,
        absent=[name for name in left if name not in stored],
        other_shape=[name for name in left if name in stored],
        unused=[*lost, *(name for name in stored if name not in own)],
        new_words=0 if only else len(set(vocabulary.tokens) - set(known.tokens)),
    )


def _rows_of_words(table: Tensor, index: Tensor, generator: torch.Generator) -> Tensor:
    """Return rows [V, ...] of a table [V', ...] by index; for -1, draw one like its rare words'."""
    import torch

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
            f"{folder}: its vocabulary cannot be read ({error_summary(error, max_length=200)}); it "
            "was made by another version of captioner"
        ) from None


def load_training_state(folder: Path) -> dict[str, Any]:
    """Read the training state of a verified folder.

    Raises:
        CheckpointError: It is damaged, although the manifest agrees with it.
    """
    import torch

    path = folder / STATE
    try:
        with zipfile.ZipFile(path) as archive:  # of stored files, so that a small one stays small
            if sum(part.file_size for part in archive.infolist()) > path.stat().st_size:
                raise ValueError("it is compressed")
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise TypeError(f"it holds a {type(state).__name__}")
    # Damaged pickles raise almost anything: UnpicklingError, EOFError, struct.error, KeyError ...
    except Exception as error:  # noqa: BLE001
        # After its first sentence, torch's message goes on with advice to programmers.
        reason = error_summary(error, part="sentence", max_length=200)
        raise CheckpointError(
            f"{path}: the training state is damaged ({type(error).__name__}: {reason}); "
            "resume from another checkpoint, or begin another run with train.start_from"
        ) from None
    return state


def clean_run_folder(run: Path) -> None:
    """Remove what a killed process left in a run folder, which the caller has locked.

    A model that was about to be replaced when the process was killed gets its name back.
    """
    for folder in (run, *run.glob("samples/*")):
        remove_temporary_files(folder, older_than_s=0)
    for name in ("best", *CHECKPOINTS):
        shutil.rmtree(run / f".{name}.writing", ignore_errors=True)
        aside = run / f".{name}.old"
        if aside.is_dir() and not (run / name).exists():
            os.replace(aside, run / name)
        shutil.rmtree(aside, ignore_errors=True)


def verify(folder: Path, *, needs_state: bool = False) -> None:
    """Compare every file with the manifest's sums.

    Args:
        needs_state: Whether training state must be there, as in a run's checkpoint.

    Raises:
        CheckpointError: A file is missing, is not a regular file, or its content is not what was
            written.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such model folder")
    sums = file_sums(folder)
    for name in (WEIGHTS, CONFIG, VOCABULARY, STATE):
        if name not in sums and (needs_state or name != STATE):
            raise CheckpointError(f"{folder}: not complete, {name} is not in {MANIFEST}")
    for name, expected in sums.items():
        try:
            _check_file(folder / name, _MAX_BYTES.get(name, _MAX_EXTRA_BYTES))
            digest = _sha256(folder / name)
        except OSError as error:
            raise CheckpointError(
                f"{folder / name}: cannot be read ({error.strerror or error}); fetch the model "
                "again"
            ) from None
        if digest != expected:
            if name == CONFIG and _is_settings(folder):
                raise CheckpointError(
                    f"{folder / name}: edited, its content does not match {MANIFEST}; undo the "
                    "edit: settings of the search are options of each command, and captioner "
                    "export makes a model folder with others"
                )
            raise CheckpointError(
                f"{folder / name}: damaged, its content does not match {MANIFEST}; "
                "fetch the model again or use another checkpoint"
            )


def _is_settings(folder: Path) -> bool:
    """Return whether config.yaml can be read: mostly so after an edit, rarely after damage."""
    try:
        load_config(folder)
    except CheckpointError:
        return False
    return True


def file_sums(folder: Path) -> dict[str, str]:
    """Return the names and SHA-256 sums of a folder's files by its manifest.

    Raises:
        CheckpointError: It is missing, damaged, of a newer version, or names other than files of
            the folder.
    """
    path = folder / MANIFEST
    try:
        _check_file(path, _MAX_BYTES[MANIFEST])
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version, sums = manifest.get("format", FORMAT), dict(manifest["sha256"].items())
        if type(version) is not int or len(sums) > _MAX_FILES:
            raise ValueError
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder}: not a model folder, {MANIFEST} is missing; "
            f"name a folder such as RUN/best that holds {WEIGHTS}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
        raise CheckpointError(f"{path}: damaged; fetch the model again") from None
    if version > FORMAT:
        raise CheckpointError(
            f"{folder}: of format {version}, which a newer version of captioner writes; update "
            "captioner"
        )
    for name in sums:
        # no path, no drive, no stream, nothing hidden
        if not re.fullmatch(r"\w[\w.+-]{0,99}", name):
            raise CheckpointError(
                f"{path}: names {name[:100]!r}, which is no file of a model folder; do not use "
                "this model"
            )
    return sums


def _check_file(path: Path, max_bytes: int) -> None:
    """Refuse by an OSError what is no regular file, or a link to one, or is too large."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is no regular file")
    if status.st_size > max_bytes:
        raise OSError(f"it has more than {max_bytes} bytes")


def _weights(model: CaptionModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the state with each shared tensor once, floats in `dtype`."""
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


def copy_model(source: Path, folder: Path) -> None:
    """Write the files of a model folder, those that its manifest lists and the card, into another.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    with _replacing_folder(folder, keep=False) as temporary:
        for name in (*file_sums(source), CARD):
            if (source / name).is_file():
                shutil.copyfile(source / name, temporary / name)


@contextmanager
def _replacing_folder(folder: Path, *, keep: bool) -> Iterator[Path]:
    """Make a folder that, once filled, gets a manifest and takes the place of `folder`.

    With `keep` the earlier one stays as `previous`. A CheckpointError says that the disk cannot
    hold it.
    """
    folder = Path(os.path.abspath(folder))  # "." has no name
    temporary = folder.with_name(f".{folder.name}.writing")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        if not (temporary / MANIFEST).exists():
            write_manifest(temporary)
        _rename_into_place(temporary, folder, keep=keep)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)  # or it would keep a full disk full
        raise CheckpointError(
            f"{folder}: the checkpoint cannot be written ({error.strerror or error}); "
            "free some disk or choose another output folder"
        ) from None


def write_manifest(folder: Path, names: Collection[str] | None = None) -> None:
    """Write the manifest of a folder's files, and wait until everything is on the disk.

    Args:
        names: The files that it lists; None lists all. Never the card, which people edit.
    """
    if names is None:
        names = [path.name for path in folder.iterdir() if path.name != MANIFEST]
    names = sorted(names)
    sums = {name: _sha256(folder / name) for name in names if name != CARD}
    content = {"format": FORMAT, "sha256": sums}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")
    for name in (*names, MANIFEST, "."):
        _fsync(folder / name)


def _rename_into_place(temporary: Path, folder: Path, *, keep: bool) -> None:
    """Rename a folder to `folder`; the earlier one becomes `previous`, or is removed.

    A folder to remove is renamed first, because a kill during its removal would leave half of a
    checkpoint. `clean_run_folder` undoes or completes what a kill interrupted.
    """
    previous = folder.with_name("previous")
    leaving = folder.with_name(f".{previous.name if keep else folder.name}.old")
    moves = [(previous, leaving), (folder, previous)] if keep else [(folder, leaving)]
    moves.append((temporary, folder))
    done: list[tuple[Path, Path]] = []
    shutil.rmtree(leaving, ignore_errors=True)
    try:
        for old, new in moves:
            if old.exists():
                os.replace(old, new)
                done.append((old, new))
    except BaseException:
        for old, new in reversed(done):
            os.replace(new, old)
        raise
    _fsync(folder.parent)
    shutil.rmtree(leaving, ignore_errors=True)


def _fsync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    if sys.platform == "win32":  # cannot open folders, nor sync files opened for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
