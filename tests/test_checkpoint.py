"""Model folders: save whole or not at all, load what was saved, notice every damage."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from cuts import interrupt
from safetensors import safe_open
from safetensors.torch import load_file
from tiny import sentence

from captioner import checkpoint
from captioner.checkpoint import file_sums, load_model, verify
from captioner.checkpoint_writer import add_files, read_extra_files, save_model, write_manifest
from captioner.config import ModelConfig
from captioner.data.tokenizers import CharacterTokenizer
from captioner.data.vocabulary import Tokenizer, Vocabulary
from captioner.errors import CheckpointError
from captioner.models.model import CaptionModel
from captioner.training.run import clean_run_folder
from captioner.training.trainer import load_training_state

Parts = tuple[CaptionModel, ModelConfig, Vocabulary]
VERIFIED = ["model.safetensors", "config.yaml", "vocabulary.json", "training_state.pt"]


@pytest.fixture
def parts() -> Parts:
    return tiny.model()


def state_of(model: CaptionModel) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def change(model: CaptionModel, by: float) -> None:
    """Another model, as training makes it: every weight and every statistic."""
    with torch.no_grad():
        for value in model.state_dict().values():
            value.add_(by if value.is_floating_point() else 1)


def reseal(folder: Path) -> None:
    """Let the manifest agree with the files, as of a folder that somebody put together."""
    (folder / "manifest.json").unlink()
    write_manifest(folder)


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_comes_back_bit_for_bit(tmp_path: Path, tied: bool) -> None:
    model, config, vocabulary = tiny.model(tie_embeddings=tied)
    change(model, 0.123)
    save_model(tmp_path / "m", model, config, vocabulary, card="# card\n")
    again, same_config, same_vocabulary = load_model(tmp_path / "m")
    assert same_config == config
    assert same_vocabulary.tokens == vocabulary.tokens
    assert not again.training
    before, after = state_of(model), state_of(again)
    assert list(after) == list(before)
    for name, value in before.items():
        assert after[name].dtype == value.dtype
        assert torch.equal(after[name], value), name
    names = set(load_file(tmp_path / "m" / "model.safetensors"))
    words = {"decoder.embedding.weight", "decoder.vocabulary.weight"}
    assert len(names & words) == (1 if tied else 2)
    assert (again.decoder.embedding.weight is again.decoder.vocabulary.weight) == tied


def test_half_precision_is_rounded_once_and_loads_as_float32(tmp_path: Path) -> None:
    model, config, vocabulary = tiny.model(tie_embeddings=True)
    for name, dtype in (("half", torch.float16), ("whole", torch.float32)):
        save_model(tmp_path / name, model, config, vocabulary, card="", dtype=dtype)
    stored = load_file(tmp_path / "half" / "model.safetensors")
    floats = [value for value in stored.values() if value.is_floating_point()]
    assert {value.dtype for value in floats} == {torch.float16}
    assert {v.dtype for v in stored.values() if not v.is_floating_point()} <= {torch.int64}
    sizes = [(tmp_path / n / "model.safetensors").stat().st_size for n in ("half", "whole")]
    assert sizes[0] < 0.6 * sizes[1]
    again = state_of(load_model(tmp_path / "half")[0])
    for name, value in state_of(model).items():
        expected = value.half().float() if value.is_floating_point() else value
        assert again[name].dtype == value.dtype
        assert torch.equal(again[name], expected), name


def test_the_folder_holds_all_that_inference_needs_and_nothing_that_can_run_code(
    tmp_path: Path, parts: Parts
) -> None:
    save_model(tmp_path / "m", *parts, card="# Mein Modell äöü\n")
    found = sorted(path.name for path in (tmp_path / "m").iterdir())
    expected = ["README.md", "config.yaml", "manifest.json", "model.safetensors", "vocabulary.json"]
    assert found == expected
    assert (tmp_path / "m" / "README.md").read_text(encoding="utf-8") == "# Mein Modell äöü\n"
    with safe_open(tmp_path / "m" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert [path.name for path in tmp_path.iterdir()] == ["m"], "no other file is left"


def test_no_training_setting_is_in_a_model_folder(tmp_path: Path) -> None:
    from captioner.config.settings import Config, DataConfig

    model, config, vocabulary = tiny.model()
    sections = {name: getattr(config, name) for name in vars(config)}
    whole = Config(**sections, data=DataConfig(root="/secret/place"))
    save_model(tmp_path / "m", model, whole, vocabulary, card="")
    assert "secret" not in (tmp_path / "m" / "config.yaml").read_text()
    assert load_model(tmp_path / "m")[1] == config


def test_a_model_is_built_without_asking_for_pretrained_weights(
    tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, config, vocabulary = parts
    encoder = replace(config.encoder, weights="default")
    save_model(tmp_path / "m", model, replace(config, encoder=encoder), vocabulary, card="")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    load_model(tmp_path / "m")


@pytest.fixture
def saved(tmp_path: Path, parts: Parts) -> Path:
    save_model(tmp_path / "last", *parts, card="# card\n", training_state={"step": 3})
    return tmp_path / "last"


@pytest.mark.parametrize("name", VERIFIED)
def test_a_damaged_or_missing_file_is_noticed_and_named(saved: Path, name: str) -> None:
    path = saved / name
    content = path.read_bytes()
    first, last = bytes([content[0] ^ 4]) + content[1:], content[:-1] + bytes([content[-1] ^ 4])
    for damaged in (first, last, content[:-1], b""):
        path.write_bytes(damaged)
        for read in (load_model, partial(verify, needs_state=True)):
            message = sentence(CheckpointError, read, saved)
            assert str(path) in message
            assert "damaged" in message
    path.unlink()
    message = sentence(CheckpointError, load_model, saved)
    assert str(path) in message
    assert "No such file" in message
    path.mkdir()
    assert str(path) in sentence(CheckpointError, load_model, saved)


def test_a_missing_manifest_or_folder_is_said_so(saved: Path) -> None:
    (saved / "manifest.json").unlink()
    for folder in (saved, saved / "no such folder", saved / "config.yaml"):
        message = sentence(CheckpointError, load_model, folder)
        assert str(folder) in message
        assert "manifest.json" in message


def test_the_model_card_may_be_edited(saved: Path) -> None:
    (saved / "README.md").write_text("# A better card\n")
    load_model(saved)
    verify(saved, needs_state=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", "encoder:\n  colour: blue\n"),
        ("vocabulary.json", "{}"),
        ("tokenizer.json", '{"tokenizer": "os"}'),
    ],
)
def test_a_folder_of_another_version_is_one_sentence_that_names_it(
    saved: Path, name: str, content: str
) -> None:
    (saved / name).write_text(content)
    reseal(saved)
    assert str(saved) in sentence(CheckpointError, load_model, saved)


def value(folder: Path) -> float:
    """Tells saved models apart."""
    model, _, _ = load_model(folder)
    return float(model.decoder.vocabulary.bias.detach()[5])


@pytest.mark.parametrize("on_call", [1, 2])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("state", [None, {"step": 1}], ids=["best", "last"])
def test_an_interrupted_save_leaves_the_old_one_whole(
    tmp_path: Path,
    parts: Parts,
    monkeypatch: pytest.MonkeyPatch,
    on_call: int,
    error: BaseException,
    state: dict[str, int] | None,
) -> None:
    folder = tmp_path / "model"
    save = partial(save_model, folder, *parts, card="", training_state=state)
    for _ in range(2):
        save()
    old = value(folder)
    change(parts[0], 1.0)
    with monkeypatch.context() as patched:
        interrupt(patched, "replace", on_call, error, [os])
        with pytest.raises((CheckpointError, KeyboardInterrupt)):
            save()
    verify(folder, needs_state=state is not None)
    assert value(folder) == old
    save()
    assert value(folder) == old + 1
    expected = ["model"] if state is None else ["model", "previous"]
    assert sorted(path.name for path in tmp_path.iterdir()) == expected


@pytest.fixture
def run(tmp_path: Path, parts: Parts) -> Path:
    for step in (1, 2):
        save_model(tmp_path / "last", *parts, card="", training_state={"step": step})
    return tmp_path


def test_the_checkpoint_before_is_kept(run: Path) -> None:
    for name, step in (("last", 2), ("previous", 1)):
        verify(run / name, needs_state=True)
        assert load_training_state(run / name)["step"] == step
    assert "RUN/last" in sentence(CheckpointError, load_model, checkpoint.model_folder(run))


def test_code_in_a_training_state_is_not_run(run: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(run / "code ran"),))

    torch.save({"step": Bomb()}, run / "last" / "training_state.pt")
    reseal(run / "last")
    assert "training_state.pt" in sentence(CheckpointError, load_training_state, run / "last")
    assert not (run / "code ran").exists()


def test_links_to_regular_files_as_of_a_hub_s_cache_are_followed(
    saved: Path, tmp_path: Path
) -> None:
    snapshot = tmp_path / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    for path in saved.iterdir():
        (snapshot / path.name).symlink_to(path)
    load_model(snapshot)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a\\b", ".hidden"])
def test_names_that_are_no_file_of_the_folder_are_refused(saved: Path, name: str) -> None:
    (saved.parent / "outside").write_text("secret")
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["sha256"][name] = "0" * 64
    (saved / "manifest.json").write_text(json.dumps(manifest))
    assert str(saved) in sentence(CheckpointError, load_model, saved)


def test_a_manifest_of_before_has_no_version_and_one_of_the_future_is_refused(saved: Path) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    assert manifest.pop("format") == 1
    (saved / "manifest.json").write_text(json.dumps(manifest))
    load_model(saved)
    (saved / "manifest.json").write_text(json.dumps({"format": 2, **manifest}))
    assert "update captioner" in sentence(CheckpointError, load_model, saved)


def test_the_tokenizer_is_saved_with_the_model_and_words_needs_no_file(
    tmp_path: Path, parts: Parts
) -> None:
    model, config, vocabulary = parts
    save_model(tmp_path / "words", model, config, vocabulary, card="#")
    assert not (tmp_path / "words" / "tokenizer.json").exists()
    characters = Vocabulary(vocabulary.words, CharacterTokenizer())
    save_model(tmp_path / "characters", model, config, characters, card="#")
    for name, kind in (("words", Tokenizer), ("characters", CharacterTokenizer)):
        loaded = load_model(tmp_path / name)[2]
        assert type(loaded.tokenizer) is kind
        assert loaded.tokens == vocabulary.tokens


def test_further_files_are_carried_and_verified(tmp_path: Path, parts: Parts) -> None:
    folder = tmp_path / "model"
    save_model(folder, *parts, card="# Card", extra_files={"calibrator.json": b"{}"})
    assert read_extra_files(folder) == {"calibrator.json": b"{}"}
    load_model(folder)
    add_files(folder, {"calibrator.json": b"[1]", "more.bin": b"\0"})
    assert read_extra_files(folder) == {"calibrator.json": b"[1]", "more.bin": b"\0"}
    assert (folder / "README.md").read_text() == "# Card"
    load_model(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    (folder / "more.bin").write_bytes(b"\1")
    assert "more.bin" in sentence(CheckpointError, load_model, folder)


def test_a_killed_replacement_is_undone_or_finished(tmp_path: Path, parts: Parts) -> None:
    run = tmp_path / "run"
    save_model(run / "best", *parts, card="#")
    (run / "best").rename(run / ".best.old")  # killed between the two renames
    (run / ".best.writing").mkdir()
    (run / ".last.writing").mkdir()
    (run / ".0123456789abcdef.tmp").write_bytes(b"half")
    clean_run_folder(run)
    assert [path.name for path in run.iterdir()] == ["best"]
    load_model(run / "best")


def test_files_of_other_people_in_a_model_folder_stay_and_are_not_listed(saved: Path) -> None:
    """A cloned folder has `.git`, and a Mac leaves `.DS_Store`; the manifest names neither."""
    (saved / ".git").mkdir()
    (saved / ".git" / "HEAD").write_text("ref")
    (saved / "my notes.txt").write_text("mine")
    add_files(saved, {"extra.json": b"{}"})
    verify(saved)
    assert "extra.json" in file_sums(saved)
    assert (saved / ".git" / "HEAD").read_text() == "ref"
    assert (saved / "my notes.txt").read_text() == "mine"
