"""Validation on generated captions, never on teacher-forced words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from captioner.config import DecodingConfig
from captioner.config.settings import Config
from captioner.data.captioned import CaptionedImage
from captioner.data.feature_cache import FeatureCache
from captioner.data.images import open_image
from captioner.data.transforms import ImageTransform
from captioner.data.vocabulary import Vocabulary
from captioner.errors import ImageError
from captioner.evaluation.metrics import quick_scores
from captioner.generation import Hypothesis, SearchOptions, search
from captioner.models.model import CaptionModel
from captioner.runtime.cuda_graphs import GraphCache
from captioner.runtime.distributed import from_first_process, gathered, rank, world_size
from captioner.runtime.parallel import prefetch

BATCH_SIZE = 25  # images; on a GPU, where the time is that of starting kernels, GPU_BATCH_SIZE
GPU_BATCH_SIZE = 200


@dataclass(frozen=True)
class Validation:
    """Result of a validation.

    Args:
        figures: Metrics and statistics by name. With several sources, `SOURCE/METRIC` for each and
            METRIC for what decides: their mean, or that of the chosen source.
        hypotheses: Search result of each readable image. In processes but the first, all but the
            figures is empty.
    """

    figures: dict[str, float]
    captions: dict[int | str, str]
    hypotheses: dict[int | str, Hypothesis]
    grid_shape: tuple[int, int]
    unreadable: list[tuple[str, str]]


def validation_decoding(config: Config) -> DecodingConfig:
    """Return the settings of the search that validates."""
    beam_size = config.train.val_beam_size or config.decoding.beam_size
    return replace(config.decoding, beam_size=beam_size)


def validate(
    model: CaptionModel,
    sources: Mapping[str, Sequence[CaptionedImage]],
    transform: ImageTransform,
    vocabulary: Vocabulary,
    *,
    device: torch.device,
    decoding: DecodingConfig,
    cache: FeatureCache | None = None,
    decisive_source: str | None = None,
    graphs: GraphCache | None = None,
) -> Validation:
    """Caption every readable image and score the captions.

    Several processes share the images; process 0 scores the captions. The others return the
    figures alone.

    Args:
        model: Put into evaluation mode.
        sources: The images of each source, by its name; ids are distinct among all.
        decoding: Settings of the search.
        cache: Features of the images, instead of the images.
        decisive_source: Source whose metrics stand without a prefix; None takes the mean.
        graphs: CUDA graphs of the search, if it may record some.

    Raises:
        ImageError: Not one image can be read.
    """
    model.eval()
    images = [image for members in sources.values() for image in members]
    options = SearchOptions.from_config(decoding, vocabulary)
    share = range(rank(), len(images), world_size())

    def read(index: int) -> Tensor | str:
        """Return the input of an image, or why it cannot be read."""
        try:
            if cache is not None:
                return cache.read(index, 0)
            return transform(open_image(images[index].path))[0]
        except ImageError as error:
            return str(error)

    inputs = iter(prefetch(read, share, device))
    size = GPU_BATCH_SIZE if device.type == "cuda" else BATCH_SIZE
    found: list[Hypothesis | str] = []
    grid_shape = (0, 0)
    while batch := list(islice(inputs, size)):
        if readable := [pixels for pixels in batch if isinstance(pixels, Tensor)]:
            stacked = torch.stack(readable).to(device).to(torch.get_default_dtype())
            with torch.inference_mode():
                grid = model.encoder(stacked, from_frozen=cache is not None)
            grid_shape = (grid.height, grid.width)
            results = iter(search(model.decoder, grid, options, graphs))
        found += [pixels if isinstance(pixels, str) else next(results)[0] for pixels in batch]
    everyone = gathered(found)
    grid_shape = max(gathered([grid_shape]), default=grid_shape)
    hypotheses: dict[int | str, Hypothesis] = {}
    unreadable: list[tuple[str, str]] = []
    for image, result in zip(images, everyone, strict=False):  # elsewhere than in process 0: none
        if isinstance(result, Hypothesis):
            hypotheses[image.image_id] = result
        else:
            unreadable.append((str(image.path), result))

    captions = {
        image_id: vocabulary.tokenizer.join(vocabulary.decode(hypothesis.tokens))
        for image_id, hypothesis in hypotheses.items()
    }
    figures = from_first_process(lambda: _figures(captions, hypotheses, sources, decisive_source))
    return Validation(figures, captions, hypotheses, grid_shape, unreadable)


def _figures(
    captions: dict[int | str, str],
    hypotheses: dict[int | str, Hypothesis],
    sources: Mapping[str, Sequence[CaptionedImage]],
    decisive_source: str | None,
) -> dict[str, float]:
    """Return the scores and statistics of the generated captions."""
    if not hypotheses:
        raise ImageError("none of the validation photos can be read")
    by_source: dict[str, dict[str, float]] = {}
    for source, images in sources.items():
        references = {i.image_id: i.captions for i in images if i.image_id in captions}
        if references:
            readable = {image_id: captions[image_id] for image_id in references}
            by_source[source] = dict(quick_scores(readable, references))
    if decisive_source is not None and decisive_source not in by_source:
        raise ImageError(f"none of the validation photos of {decisive_source} can be read")
    # What decides about the best checkpoint has no prefix.
    decisive = [by_source[decisive_source]] if decisive_source else list(by_source.values())
    figures = {
        name: sum(scores[name] for scores in decisive) / len(decisive)
        for name in decisive[0]
        if all(name in scores for scores in decisive)  # no CIDEr where a source has one image
    }
    if len(sources) > 1:
        for source, scores in by_source.items():
            figures |= {f"{source}/{name}": value for name, value in scores.items()}
    figures |= generated_attention_statistics(list(hypotheses.values()))
    figures["distinct_captions"] = len(set(captions.values())) / len(captions)
    figures["words"] = sum(len(h.tokens) for h in hypotheses.values()) / len(hypotheses)
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
    statistics = {"attention_entropy": float(np.concatenate(entropies).mean())}
    change = np.concatenate(changes)
    if len(change):
        statistics["attention_change"] = float(change.mean())
    if betas:
        statistics["beta"] = float(np.concatenate(betas).mean())
    return statistics
