"""Validation on captions that the model writes freely, never on teacher-forced words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.data.captioned import CaptionedPhoto
from captioner.data.feature_cache import FeatureCache
from captioner.data.transforms import PhotoTransform, open_photo
from captioner.data.vocabulary import Vocabulary
from captioner.decoding import Hypothesis, search
from captioner.errors import PhotoError
from captioner.evaluation.metrics import quick_scores
from captioner.model import CaptionModel
from captioner.passes import read_ahead
from captioner.training.diagnostics import written_attention

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
    photos: Sequence[CaptionedPhoto],
    transform: PhotoTransform,
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
        PhotoError: not one photo can be read.
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
        raise PhotoError("none of the validation photos can be read")
    captions = {
        image_id: " ".join(vocabulary.decode(hypothesis.tokens))
        for image_id, hypothesis in found.items()
    }
    references = {photo.image_id: photo.captions for photo in photos if photo.image_id in captions}
    figures = dict(quick_scores(captions, references))
    figures |= written_attention(list(found.values()))
    figures["distinct_captions"] = len(set(captions.values())) / len(captions)
    figures["words"] = sum(len(h.tokens) for h in found.values()) / len(found)
    return Validation(figures, captions, found, grid_shape, unreadable)


def _batches(
    photos: Sequence[CaptionedPhoto],
    transform: PhotoTransform,
    cache: FeatureCache | None,
    device: torch.device,
    unreadable: list[tuple[str, str]],
) -> Iterator[tuple[list[CaptionedPhoto], Tensor]]:
    def read(index: int) -> Tensor | PhotoError:
        try:
            if cache is not None:
                return cache.read(index, 0)
            return transform(open_photo(photos[index].path))[0]
        except PhotoError as error:
            return error

    found = iter(read_ahead(read, range(len(photos)), device))
    for first in range(0, len(photos), BATCH):
        members, inputs = [], []
        for photo, pixels in zip(photos[first : first + BATCH], found, strict=False):
            if isinstance(pixels, PhotoError):
                unreadable.append((str(photo.path), str(pixels)))
            else:
                members.append(photo)
                inputs.append(pixels)
        if members:
            yield members, torch.stack(inputs)
