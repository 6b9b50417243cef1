"""Validation on captions that the model writes freely, never on teacher-forced words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.data.captioned import CaptionedImage
from captioner.data.feature_cache import FeatureCache
from captioner.data.transforms import ImageTransform, open_image
from captioner.data.vocabulary import Vocabulary
from captioner.errors import ImageError
from captioner.evaluation.metrics import quick_scores
from captioner.generation import Hypothesis, search
from captioner.models.build import CaptionModel
from captioner.runtime.parallel import prefetch
from captioner.training.diagnostics import generated_attention_statistics

BATCH = 25


@dataclass(frozen=True)
class Validation:
    """figures: metrics and diagnostics by name; captions by image id; grid_shape: rows, columns.

    unreadable: photos left out, each with the reason.
    """

    figures: dict[str, float]
    captions: dict[int | str, str]
    hypotheses: dict[int | str, Hypothesis]
    grid_shape: tuple[int, int]
    unreadable: list[tuple[str, str]]


def validate(
    model: CaptionModel,
    photos: Sequence[CaptionedImage],
    transform: ImageTransform,
    vocabulary: Vocabulary,
    *,
    device: torch.device,
    beam_size: int,
    max_words: int,
    length_penalty: float,
    no_repeat_ngram: int = 0,
    cache: FeatureCache | None = None,
) -> Validation:
    """Caption every readable photo and score the captions.

    Raises:
        ImageError: not one photo can be read.
    """
    model.eval()
    found: dict[int | str, Hypothesis] = {}
    grid_shape = (0, 0)
    unreadable: list[tuple[str, str]] = []
    for members, inputs in _batches(photos, transform, cache, device, unreadable):
        with torch.inference_mode():
            grid = model.encoder(inputs.to(device).float(), from_frozen=cache is not None)
        grid_shape = (grid.height, grid.width)
        results = search(
            model.decoder,
            grid,
            beam_size=beam_size,
            max_words=max_words,
            length_penalty=length_penalty,
            no_repeat_ngram=no_repeat_ngram,
        )
        found |= {photo.image_id: result[0] for photo, result in zip(members, results, strict=True)}
    if not found:
        raise ImageError("none of the validation photos can be read")
    captions = {
        image_id: vocabulary.tokenizer.join(vocabulary.decode(hypothesis.tokens))
        for image_id, hypothesis in found.items()
    }
    references = {photo.image_id: photo.captions for photo in photos if photo.image_id in captions}
    figures = dict(quick_scores(captions, references))
    figures |= generated_attention_statistics(list(found.values()))
    figures["distinct_captions"] = len(set(captions.values())) / len(captions)
    figures["words"] = sum(len(h.tokens) for h in found.values()) / len(found)
    return Validation(figures, captions, found, grid_shape, unreadable)


def _batches(
    photos: Sequence[CaptionedImage],
    transform: ImageTransform,
    cache: FeatureCache | None,
    device: torch.device,
    unreadable: list[tuple[str, str]],
) -> Iterator[tuple[list[CaptionedImage], Tensor]]:
    def read(index: int) -> Tensor | ImageError:
        try:
            if cache is not None:
                return cache.read(index, 0)
            return transform(open_image(photos[index].path))[0]
        except ImageError as error:
            return error

    found = iter(prefetch(read, range(len(photos)), device))
    for first in range(0, len(photos), BATCH):
        members, inputs = [], []
        for photo, pixels in zip(photos[first : first + BATCH], found, strict=False):
            if isinstance(pixels, ImageError):
                unreadable.append((str(photo.path), str(pixels)))
            else:
                members.append(photo)
                inputs.append(pixels)
        if members:
            yield members, torch.stack(inputs)
