"""Reports of a validation: on the terminal and as sample pictures."""

from __future__ import annotations

import sys

from tqdm import tqdm

from captioner.data.transforms import open_image
from captioner.errors import ImageError
from captioner.training.diagnostics import warnings
from captioner.training.run_log import RunLog
from captioner.training.setup import Setup
from captioner.training.validation import Validation
from captioner.visualization import attention_sheet


def print_validation(epoch: int, validation: Validation, *, attends: bool) -> None:
    """Print the main figures of an epoch, and a warning for each sign of collapse.

    Args:
        epoch: Epochs done.
        validation: Of the last of them.
        attends: Whether the decoder has attention.
    """
    figures = validation.figures
    names = [name for name in figures if name.split("/")[-1] in ("Bleu_4", "ROUGE_L", "CIDEr")]
    tqdm.write(
        f"epoch {epoch}: "
        + ", ".join(f"{name} {figures[name]:.4f}" for name in names)
        + f", {figures['distinct_captions']:.0%} distinct captions",
        file=sys.stderr,
    )
    for sentence in warnings(figures, len(validation.captions), attends=attends):
        print(f"warning: {sentence}", file=sys.stderr)


def log_samples(
    log: RunLog, setup: Setup, validation: Validation, epoch: int, step: int, samples: int
) -> list[tuple[str, str]]:
    """Log the attention of the first validation images.

    Args:
        log: Where they go.
        setup: Has the validation images.
        validation: Has their captions.
        epoch: Epochs done.
        step: Optimizer steps done.
        samples: Images to log.

    Returns:
        Images that could not be read again, each with the reason.
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
        log.sample(index, epoch, image, caption)
    log.pictures(step, sheets)
    return unreadable
