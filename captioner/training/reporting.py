"""Reports of a validation: on the terminal, and as sheets in TensorBoard."""

from __future__ import annotations

from captioner.config.settings import Config
from captioner.data.images import open_image
from captioner.errors import ImageError
from captioner.log import logger
from captioner.training.run_log import RunLog
from captioner.training.setup import Setup
from captioner.training.validation import Validation, validation_decoding
from captioner.visualization import Caption, attention_sheet

EARLY_STEPS = 500  # before these, attention that is flat is no alarm: it begins so
FLAT_ENTROPY = 0.995  # of the uniform map's; above it attention says nothing
FROZEN_CHANGE = 0.01  # total variation distance between neighbouring words
SAME_CAPTIONS = 0.02  # share of distinct captions


def print_validation(
    epoch: int, step: int, validation: Validation, config: Config, warned: set[str]
) -> None:
    """Print the main figures of an epoch, and a warning for each sign of collapse not `warned` of.

    New signs are added to `warned`; epoch and step are those that are done.
    """
    figures = validation.figures
    names = [name for name in figures if name.split("/")[-1] in ("Bleu_4", "ROUGE_L", "CIDEr")]
    logger.info(
        f"epoch {epoch} (beam {validation_decoding(config).beam_size}): "
        + ", ".join(f"{name} {figures[name]:.4f}" for name in names)
        + f", {figures['distinct_captions']:.0%} distinct captions"
    )
    attends = config.decoder.kind != "mean" and step >= max(EARLY_STEPS, config.optim.warmup_steps)
    for sign, sentence in warnings(figures, len(validation.captions), attends=attends).items():
        if sign not in warned:
            logger.warning(f"warning: {sentence}")
        warned.add(sign)


def warnings(
    figures: dict[str, float], num_captions: int, *, attends: bool = True
) -> dict[str, str]:
    """Return one sentence for each sign of collapse in the figures of a validation.

    Args:
        attends: Whether attention should differ from the uniform map by now.
    """
    sentences = {}
    if attends and figures["attention_entropy"] > FLAT_ENTROPY:
        sentences["flat"] = (
            "attention is flat: its entropy is "
            f"{figures['attention_entropy']:.3f} of the uniform map's; "
            "lower loss.doubly_stochastic or the learning rate"
        )
    elif attends and figures.get("attention_change", 1.0) < FROZEN_CHANGE:
        sentences["frozen"] = (
            "attention is frozen: its maps hardly change from word to word "
            f"({figures['attention_change']:.4f}); train longer or lower loss.doubly_stochastic"
        )
    if num_captions >= 50 and figures["distinct_captions"] < SAME_CAPTIONS:
        sentences["same"] = (
            f"the captions are nearly all the same ({figures['distinct_captions']:.1%} distinct); "
            "check the learning rate and that photos and captions belong together"
        )
    return sentences


def log_samples(
    log: RunLog, setup: Setup, validation: Validation, step: int, samples: int
) -> list[tuple[str, str]]:
    """Log the attention of the first validation images.

    Returns:
        The images that cannot be read again, each with the reason.
    """
    sheets = []
    unreadable = []
    for entry in setup.validation[:samples]:
        hypothesis = validation.hypotheses.get(entry.image_id)
        if hypothesis is None:
            continue
        try:
            image = open_image(entry.path)
        except ImageError as error:  # it could be read a moment ago
            unreadable.append((str(entry.path), str(error)))
            continue
        words, geometry = (
            setup.vocabulary.decode(hypothesis.tokens),
            setup.validation_transform(image)[1],
        )
        caption = Caption.from_hypothesis(hypothesis, words, geometry, validation.grid_shape)
        sheets.append(attention_sheet(image, caption))
    log.pictures(step, sheets)
    return unreadable
