"""Reports of a run: a validation on the terminal and as sample pictures, and a failure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from captioner.data.batch import Batch
from captioner.data.transforms import open_image
from captioner.errors import CaptionerError, ImageError
from captioner.files import save_bytes
from captioner.log import logger
from captioner.training.run_log import RunLog
from captioner.training.setup import Setup
from captioner.training.validation import Validation
from captioner.types import Caption
from captioner.visualization import attention_sheet, caption_arrays, jpeg, save_npz, shrunk

SAMPLE_PX = 640  # longer side of the sample photos that a run keeps

FLAT_ENTROPY = 0.995  # of the uniform map's; above it attention says nothing
FROZEN_CHANGE = 0.01  # total variation distance between neighbouring words
SAME_CAPTIONS = 0.02  # share of distinct captions


def print_validation(epoch: int, validation: Validation, *, attends: bool) -> None:
    """Print the main figures of an epoch, and a warning for each sign of collapse."""
    figures = validation.figures
    names = [name for name in figures if name.split("/")[-1] in ("Bleu_4", "ROUGE_L", "CIDEr")]
    logger.info(
        f"epoch {epoch}: "
        + ", ".join(f"{name} {figures[name]:.4f}" for name in names)
        + f", {figures['distinct_captions']:.0%} distinct captions"
    )
    for sentence in warnings(figures, len(validation.captions), attends=attends):
        logger.warning(f"warning: {sentence}")


def warnings(figures: dict[str, float], num_captions: int, *, attends: bool = True) -> list[str]:
    """Return one sentence for each sign of collapse in the figures of a validation."""
    sentences = []
    if attends and figures["attention_entropy"] > FLAT_ENTROPY:
        sentences.append(
            "attention has gone flat: its entropy is "
            f"{figures['attention_entropy']:.3f} of the uniform map's; "
            "lower loss.doubly_stochastic or the learning rate"
        )
    if attends and figures.get("attention_change", 1.0) < FROZEN_CHANGE:
        sentences.append(
            "attention is frozen: its maps hardly change from word to word "
            f"({figures['attention_change']:.4f}); train longer or lower loss.doubly_stochastic"
        )
    if num_captions >= 50 and figures["distinct_captions"] < SAME_CAPTIONS:
        sentences.append(
            f"the captions are nearly all the same ({figures['distinct_captions']:.1%} distinct); "
            "check the learning rate and that photos and captions belong together"
        )
    return sentences


def log_samples(
    log: RunLog, setup: Setup, validation: Validation, epoch: int, step: int, samples: int
) -> list[tuple[str, str]]:
    """Log the attention of the first validation images.

    Returns:
        The images that cannot be read again, each with the reason.
    """
    sheets = []
    unreadable = []
    for index, entry in enumerate(setup.validation[:samples], start=1):
        if entry.image_id not in validation.hypotheses:
            continue
        try:
            image = open_image(entry.path)
        except ImageError as error:  # it could be read a moment ago
            unreadable.append((str(entry.path), str(error)))
            continue
        hypothesis = validation.hypotheses[entry.image_id]
        height, width = validation.grid_shape
        caption = hypothesis.to_caption(
            setup.vocabulary.decode(hypothesis.tokens),
            setup.validation_transform(image)[1],
            height=height,
            width=width,
        )
        sheets.append(attention_sheet(image, caption))
        _keep(caption, image, log.run / "samples" / str(index), epoch)
    log.pictures(step, sheets)
    return unreadable


def _keep(caption: Caption, image: Image.Image, folder: Path, epoch: int) -> None:
    """Keep the caption of a sample after an epoch, and its image once, for `captioner plot`."""
    small, caption = shrunk(image, caption, longest_side_px=SAMPLE_PX)
    if not (folder / "photo.jpg").exists():
        save_bytes(jpeg(small), folder / "photo.jpg")
    # A resumed run writes its epochs anew.
    save_npz(caption_arrays(caption), folder / f"epoch-{epoch:04d}.npz")


def gradients_not_finite(batches: Sequence[Batch], path: Path, steps: int) -> CaptionerError:
    """Keep the batches of the last of many steps in a row whose gradient was not finite.

    Returns:
        The error that ends the run.
    """
    buffer = io.BytesIO()  # in memory: PyTorch's own message of a full disk is no sentence
    torch.save([{**vars(batch), "tokens": batch.tokens} for batch in batches], buffer)
    save_bytes(buffer.getvalue(), path)
    return CaptionerError(
        f"the gradient was not finite in {steps} steps in a row; the last batch is in {path}; "
        "lower optim.lr or set optim.clip_norm, and start from an earlier model"
    )
