"""A model and a data set that are small enough for tests to build, train and break."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from captioner.config import (
    AttentionConfig,
    DecoderConfig,
    DecodingConfig,
    EncoderConfig,
    ModelConfig,
    PreprocessConfig,
)
from captioner.config.settings import Config, DataConfig, OptimConfig, TrainConfig
from captioner.data.layouts import VAL_SHARE, CaptionedData, DataFiles
from captioner.data.splits import Split

if TYPE_CHECKING:
    from torch import Tensor

    from captioner.data.batch import Batch
    from captioner.data.vocabulary import Vocabulary
    from captioner.models.model import CaptionModel
    from captioner.training.step import StepOutput

WORDS = "a the on red green blue square disc field wears café t-shirt".split()


def sentence(
    error: type[Exception], action: Callable[..., object], *given: Any, **more: Any
) -> str:
    """The message of the error that an action ends with, if it is one sentence for a user."""
    with pytest.raises(error) as caught:
        action(*given, **more)
    message = str(caught.value)
    for inner in ("\n", "functools", "object at 0x", "Traceback", "argument after **"):
        assert inner not in message
    assert 10 < len(message) < 500
    assert not message.endswith(".")
    return message


def read_split(*, split: str, val_share: float = VAL_SHARE, **data: Any) -> Split:
    """Read a split of the data set that fields of `DataFiles` name."""
    return CaptionedData(DataFiles(**data), val_share=val_share).split(split)


def model(
    *, tie_embeddings: bool = False, **attention: Any
) -> tuple[CaptionModel, ModelConfig, Vocabulary]:
    """Random weights, made loud, so that photos get different captions and words different maps.

    attention: settings beside its size.
    """
    import torch

    from captioner.data.vocabulary import Vocabulary
    from captioner.models.build import build_model, resolved

    vocabulary = Vocabulary(WORDS)
    config = ModelConfig(
        preprocess=PreprocessConfig(height_px=64, width_px=96),
        encoder=EncoderConfig("timm/test_resnet", weights="none", project_dim=16),
        attention=AttentionConfig(dim=8, **attention),
        decoder=DecoderConfig(hidden_dim=16, embed_dim=16, tie_embeddings=tie_embeddings),
        decoding=DecodingConfig(beam_size=3, max_words=12, no_double_words=False),
    )
    with torch.random.fork_rng():
        torch.manual_seed(13)
        network = build_model(config, len(vocabulary))
        with torch.no_grad():
            decoder = network.decoder
            for weight, factor in (
                (network.encoder.project[0].weight, 100),
                (decoder.attention.score.energy.weight, 8),
                (decoder.attention.score.query.weight, 6),
                (decoder.initial_h.weight, 6),
                (decoder.word_gates.weight, 20),
                (decoder.state_gates.weight, 2),
                (decoder.from_h.weight, 4),
                (decoder.from_context.weight, 4),
                (decoder.vocabulary.weight, 3),
            ):
                weight.mul_(factor)
            decoder.vocabulary.bias[vocabulary.end] += 1.5
    return network, resolved(config, network), vocabulary


def photo(number: int, width: int = 60, height: int = 48) -> tuple[Image.Image, list[str]]:
    """A coloured shape on a coloured field, with grain, and two captions of it."""
    generator = np.random.default_rng(number)
    colours = ["red", "green", "blue"]
    ground, ink = generator.permutation(3)[:2]
    shape = ["square", "disc"][number % 2]
    image = Image.new("RGB", (width, height), colours[ground])
    x, y = generator.integers(4, 20, 2).tolist()
    draw = ImageDraw.Draw(image)
    (draw.rectangle if shape == "square" else draw.ellipse)((x, y, x + 24, y + 24), colours[ink])
    grain = generator.integers(-20, 20, (height, width, 3))
    pixels = np.clip(np.asarray(image, dtype=int) + grain, 0, 255).astype(np.uint8)
    captions = [f"a {colours[ink]} {shape} on a {colours[ground]} field", f"a {shape}"]
    if number % 3 == 0:
        captions[1] = f"the {colours[ink]} {shape}"
    return Image.fromarray(pixels), captions


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def draw_table(folder: Path, *, train: int = 12, val: int = 3, test: int = 3) -> Path:
    """Write photos and captions.csv (image, caption, split) into a folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = ["train"] * train + ["val"] * val + ["test"] * test
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "caption", "split"])
        for number, split in enumerate(splits):
            image, captions = photo(number)
            image.save(folder / f"{number:02d}.jpg", quality=95)
            rows.writerows([f"{number:02d}.jpg", caption, split] for caption in captions)
    return folder


def log_entries(run: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return all entries of metrics.jsonl, or the figures of some kinds, without measured times."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    left_out = {"data_wait", "step_s", *(["kind"] if kinds else [])}
    return [
        {key: value for key, value in line.items() if key not in left_out}
        for line in lines
        if not kinds or line["kind"] in kinds
    ]


def assert_same_run(run: Path, whole: Path, *kinds: str) -> None:
    """Entries of these kinds and weights are those of the other run, bit for bit."""
    assert log_entries(run, *kinds) == log_entries(whole, *kinds)
    for folder in ("last", "best"):
        ours, theirs = ((r / folder / "model.safetensors").read_bytes() for r in (run, whole))
        assert ours == theirs, f"the weights in {folder} differ"


NO_DROPOUT: dict[str, Any] = {
    "decoder__dropout": 0.0, "decoder__embed_dropout": 0.0, "encoder__dropout": 0.0
}  # fmt: skip


def captions(targets: Tensor, lengths: Tensor, **more: Any) -> Batch:
    """A batch of captions without images."""
    from captioner.data.batch import Batch

    none, words = targets.new_zeros(0), int(lengths.sum())
    fields = {"inputs": none, "image_numbers": none, "image_index": none, **more}
    return Batch(**fields, targets=targets, lengths=lengths, words=words, captions=len(lengths))


def step(task: Any, batch: Batch, optimizer: Any, **changed: Any) -> StepOutput:
    """Take an optimizer step by one batch, on the CPU."""
    import torch

    from captioner.training.step import training_step

    given = {"learning_rate_factor": 1.0, "clip_norm": 1.0, "autocast": nullcontext()}
    given |= {"device": torch.device("cpu"), **changed}
    return training_step(task, [batch], optimizer, **given)


def load_epoch(dataset: Any, batches: Any, epoch: int, first: int = 0, **options: Any) -> Any:
    """The batches of an epoch from the first on, loaded as training does."""
    from captioner.data.workers import load_items

    items = [(epoch, entries) for entries in batches.epoch(epoch)[first:]]
    return load_items(dataset, items, **options)


def recipe(root: Path, output: Path, **changed: object) -> Config:
    """A training recipe of a second or two; `changed` are settings as `section__key`."""
    config = Config(
        data=DataConfig(format="table", root=str(root), min_count=1, batch_size=4, workers=0),
        preprocess=PreprocessConfig(height_px=64, width_px=64),
        encoder=EncoderConfig("timm/test_resnet", weights="none", project_dim=16, dropout=0.1),
        attention=AttentionConfig(dim=8),
        decoder=DecoderConfig(hidden_dim=16, embed_dim=16, dropout=0.3, embed_dropout=0.1),
        optim=OptimConfig(lr=5e-3, warmup_steps=2, ema_decay=0.9, accumulate=2),
        train=TrainConfig(
            output=str(output),
            epochs=2,
            device="cpu",
            log_every=1,
            checkpoint_every=2,
            samples=0,
            val_beam_size=2,
        ),
        decoding=DecodingConfig(beam_size=2, max_words=8),
    )
    for name, value in changed.items():
        section, key = name.split("__")
        config = replace(config, **{section: replace(getattr(config, section), **{key: value})})
    return config
