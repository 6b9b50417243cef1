"""Validation on generated captions; the cross-entropy of human ones is reported with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from captioner.config import DecodingConfig
from captioner.config.settings import Config
from captioner.data.feature_cache import FeatureCache
from captioner.data.images import open_image
from captioner.data.splits import CaptionedImage
from captioner.data.transforms import ImageTransform
from captioner.data.vocabulary import Vocabulary
from captioner.errors import ImageError
from captioner.evaluation.metrics import quick_scores
from captioner.generation import Hypothesis, SearchOptions, force_decode, search
from captioner.log import logger
from captioner.models.model import CaptionModel
from captioner.runtime.cuda_graphs import GraphCache
from captioner.runtime.distributed import mean_over_processes, rank, world_size
from captioner.runtime.parallel import prefetch
from captioner.runtime.processes import from_first_process, gathered
from captioner.visualization import Caption, attention_sheet

BATCH_SIZE, GPU_BATCH_SIZE = 25, 256  # images; a GPU computes multiples of 64
EARLY_STEPS = 500  # before these, attention that is flat is no alarm: it begins so
FLAT_ENTROPY = 0.995  # of the uniform map's; above it attention says nothing
FROZEN_CHANGE = 0.01  # total variation distance between neighbouring words


@dataclass(frozen=True)
class ValidationData:
    """The images of a validation, and how they are read."""

    sources: dict[str, list[CaptionedImage]]  # by name; image ids are distinct among all
    transform: ImageTransform
    cache: FeatureCache | None = None  # features, read instead of the images
    decisive_source: str | None = None  # whose metrics stand without a prefix; None: their mean

    @property
    def images(self) -> list[CaptionedImage]:
        """The images of all sources."""
        return [image for images in self.sources.values() for image in images]


@dataclass(frozen=True)
class Validation:
    """Result of a validation.

    Args:
        figures: Metrics and statistics by name. With several sources, `SOURCE/METRIC` for each and
            METRIC for what decides: their mean, or that of the decisive source.
    """

    figures: dict[str, float]
    captions: dict[int | str, str]
    hypotheses: dict[int | str, Hypothesis]  # of each readable image
    grid_shape: tuple[int, int]
    unreadable: list[tuple[str, str]]  # paths of the other images, and why


def validation_decoding(config: Config) -> DecodingConfig:
    """Return the settings of the search that validates."""
    beam_size = config.train.val_beam_size or config.decoding.beam_size
    return replace(config.decoding, beam_size=beam_size)


def validate(
    model: CaptionModel,
    vocabulary: Vocabulary,
    data: ValidationData,
    *,
    decoding: DecodingConfig,
    device: torch.device,
    graphs: GraphCache | None = None,
) -> Validation:
    """Caption every readable image and score the captions.

    The figure `cross_entropy` is that of the first human caption of each image, in nats a word.
    Several processes share the images; process 0 scores. The model stays in evaluation mode.
    """
    model.eval()
    images, cache = data.images, data.cache
    options = SearchOptions.from_config(decoding, vocabulary)
    split, encode = vocabulary.tokenizer.split, vocabulary.encode

    def read(index: int) -> Tensor | str:
        """Return the input of an image, or why it cannot be read."""
        try:
            if cache is not None:
                return cache.read(index, 0)
            return data.transform(open_image(images[index].path))[0]
        except ImageError as error:
            return str(error)

    inputs = iter(prefetch(read, range(rank(), len(images), world_size()), device))
    size = GPU_BATCH_SIZE if device.type == "cuda" else BATCH_SIZE
    found: list[Hypothesis | str] = []
    log_prob, words = 0.0, 0  # of the human captions
    grid_shape = (0, 0)
    while batch := list(islice(inputs, size)):
        if readable := [pixels for pixels in batch if isinstance(pixels, Tensor)]:
            stacked = torch.stack(readable).to(device).to(torch.get_default_dtype())
            with torch.inference_mode():
                grid = model.encoder(stacked, from_frozen=cache is not None)
            grid_shape = (grid.height, grid.width)
            results = iter(search(model.decoder, grid, options, graphs))
            own = zip(images[rank() :: world_size()][len(found) :], batch, strict=False)
            texts = [i.captions[0] for i, pixels in own if isinstance(pixels, Tensor)]
            # Longer ones are cut and end there, as in training; the decoder reads no more words.
            tokens = [[encode(split(text)[: options.max_words - 1])] for text in texts]
            for (human,) in force_decode(model.decoder, grid, tokens):
                log_prob += human.score
                words += len(human.tokens) + 1  # the end
        found += [pixels if isinstance(pixels, str) else next(results)[0] for pixels in batch]
    grid_shape = max(gathered([grid_shape]))
    pairs = list(zip(images, gathered(found), strict=True))
    hypotheses = {i.image_id: each for i, each in pairs if isinstance(each, Hypothesis)}
    unreadable = [(str(i.path), reason) for i, reason in pairs if isinstance(reason, str)]
    join, decode = vocabulary.tokenizer.join, vocabulary.decode
    captions = {image_id: join(decode(each.tokens)) for image_id, each in hypotheses.items()}
    figures = from_first_process(lambda: _figures(captions, list(hypotheses.values()), data))
    log_prob, words = mean_over_processes(torch.tensor([log_prob, words]).double()).tolist()
    figures["cross_entropy"] = -log_prob / words
    return Validation(figures, captions, hypotheses, grid_shape, unreadable)


def _figures(
    captions: dict[int | str, str], hypotheses: list[Hypothesis], data: ValidationData
) -> dict[str, float]:
    by_source = {
        source: quick_scores({image_id: captions[image_id] for image_id in readable}, readable)
        for source, images in data.sources.items()
        if (readable := {i.image_id: i.captions for i in images if i.image_id in captions})
    }
    decisive = [s for name, s in by_source.items() if data.decisive_source in (None, name)]
    if not decisive:
        raise ImageError("none of the validation photos that choose the best model can be read")
    figures = {
        name: sum(scores[name] for scores in decisive) / len(decisive)
        for name in decisive[0]
        if all(name in scores for scores in decisive)  # no CIDEr where a source has one image
    }
    if len(data.sources) > 1:
        for source, scores in by_source.items():
            figures |= {f"{source}/{name}": value for name, value in scores.items()}
    figures |= generated_attention_statistics(hypotheses)
    figures["distinct_captions"] = len(set(captions.values())) / len(captions)
    figures["words"] = sum(len(h.tokens) for h in hypotheses) / len(hypotheses)
    return figures


def generated_attention_statistics(hypotheses: Sequence[Hypothesis]) -> dict[str, float]:
    """Return the `attention_statistics` of generated captions."""
    entropies, changes, betas = [], [], []
    for hypothesis in hypotheses:
        maps = hypothesis.maps.astype(np.float64)
        uniform = math.log(max(2, maps.shape[1]))
        each = maps if hypothesis.heads is None else hypothesis.heads.astype(np.float64)
        entropy = -(each * np.log(each.clip(1e-12))).sum(-1) / uniform
        entropies.append(entropy.reshape(len(maps), -1).mean(1))  # of layers and heads
        changes.append(0.5 * np.abs(np.diff(maps, axis=0)).sum(1))
        if hypothesis.beta is not None:
            betas.append(hypothesis.beta)
    parts = {"attention_entropy": entropies, "attention_change": changes, "beta": betas}
    joined = {name: np.concatenate(values) for name, values in parts.items() if values}
    return {name: float(values.mean()) for name, values in joined.items() if len(values)}


def print_validation(epoch: int, step: int, figures: dict[str, float], config: Config) -> None:
    """Print the figures of an epoch, and warn of attention that says nothing."""
    names = [name for name in figures if name.split("/")[-1] in ("Bleu_4", "ROUGE_L", "CIDEr")]
    logger.info(
        f"epoch {epoch} (beam {validation_decoding(config).beam_size}): "
        + ", ".join(f"{name} {figures[name]:.4f}" for name in [*names, "cross_entropy"])
        + f", {figures['distinct_captions']:.0%} distinct captions"
    )
    if config.decoder.kind == "mean" or step < max(EARLY_STEPS, config.optim.warmup_steps):
        return
    entropy, change = figures["attention_entropy"], figures.get("attention_change", 1.0)
    if entropy > FLAT_ENTROPY or change < FROZEN_CHANGE:
        logger.warning(
            "attention is flat, or its maps hardly change from word to word; train longer, or "
            "lower loss.doubly_stochastic or optim.lr"
        )


def sample_sheets(
    validation: Validation, data: ValidationData, vocabulary: Vocabulary, count: int
) -> list[Image.Image]:
    """Draw the attention of the first `count` images, as far as they could be read."""
    sheets = []
    for entry in data.images[:count]:
        if hypothesis := validation.hypotheses.get(entry.image_id):
            image = open_image(entry.path)
            words, (_, geometry) = vocabulary.decode(hypothesis.tokens), data.transform(image)
            caption = Caption.from_hypothesis(hypothesis, words, geometry, validation.grid_shape)
            sheets.append(attention_sheet(image, caption))
    return sheets
