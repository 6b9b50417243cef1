"""Caption the images of a data set, score the captions and measure their attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from captioner.data.images import opened
from captioner.data.splits import CaptionedImage
from captioner.errors import CaptionerError, ConfigError, DataError, ImageError
from captioner.evaluation.calibration import calibration_report
from captioner.evaluation.grounding import GroundedWord, Objects, ground, in_whole_words
from captioner.evaluation.grounding import summary as grounding_summary
from captioner.evaluation.intervals import ImageScores, bootstrap_intervals
from captioner.evaluation.metrics import score_captions
from captioner.evaluation.results import digest_of
from captioner.evaluation.statistics import bias_counts, corpus_statistics
from captioner.log import logger, progress_bar
from captioner.runtime.parallel import parallel_map
from captioner.types import hard_attention_mode
from captioner.visualization import Caption

if TYPE_CHECKING:
    from PIL import Image

    from captioner.captioner import Captioner
    from captioner.config import HardAttentionMode
    from captioner.generation import SearchOptions

ImageId = int | str
MEASURED_REFERENCES = 2  # references of an image on which attention is measured


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation."""

    results: dict[str, Any]  # the content of `results.json` (docs/evaluation.md)
    captions: dict[ImageId, Caption]  # of all images that could be read


def evaluate(
    captioner: Captioner,
    images: Sequence[CaptionedImage],
    *,
    objects: Objects | None = None,
    faithfulness: int = 0,
    signature: Mapping[str, object] | None = None,
    training_captions: Sequence[str] | None = None,
    time_limit_s: float = 600.0,
    **search: Any,
) -> Evaluation:
    """Caption images and score the captions against their references.

    Args:
        objects: COCO's instances, to measure whether attention lies on them; None does not.
        faithfulness: Number of images on which attention is replaced and cells are deleted.
        signature: Entries to add to the results' signature.
        training_captions, time_limit_s: As for `score_texts`.
        search: As for `Captioner.options`, such as `beam_size` and `at_test`.
    """
    options = captioner.options(**search)
    captions = caption_images(captioner, images, options)
    if not captions:
        raise DataError(f"none of the {len(images)} photos can be read")
    known = [image for image in images if image.image_id in captions and image.captions]
    written = {image.image_id: captions[image.image_id] for image in known}
    config, at_test = captioner.config, options.at_test
    mode = at_test or config.attention.at_test
    results = score_texts(
        {image_id: caption.text for image_id, caption in written.items()},
        known,
        signature={
            **vars(config.decoding),
            **{name: value for name, value in search.items() if value is not None},
            "at_test": mode if captioner.has_hard_attention else None,
            **(signature or {}),
        },
        training_captions=training_captions,
        time_limit_s=time_limit_s,
    )
    cider = [image["scores"].get("CIDEr") for image in results["images"]]
    if captioner.calibrator and None not in cider:
        limit, threshold = captioner.calibrator.right_from, captioner.calibrator.threshold
        confidence = np.array([caption.confidence for caption in written.values()])
        report = calibration_report(confidence, np.array(cider) >= limit, threshold)
        results["calibration"] = {"right_from": limit, **report}
    if objects:
        results["grounding"] = measure_grounding(captioner, written, known, objects, at_test)
    if faithfulness:
        results["attention"] = _replacements(captioner.in_torch(), known[:faithfulness], at_test)
    return Evaluation(results, captions)


def caption_images(
    captioner: Captioner, images: Sequence[CaptionedImage], options: SearchOptions
) -> dict[ImageId, Caption]:
    """Return captions by image id, of the images that can be read."""
    captions: dict[ImageId, Caption] = {}
    with progress_bar(total=len(images), unit="photo") as bar:

        def failed(image: CaptionedImage, error: ImageError) -> None:
            bar.update()
            logger.warning(f"{image.path}: {error}")

        def captioned(batch: list[tuple[CaptionedImage, Image.Image]]) -> dict[ImageId, Caption]:
            found = captioner.captions([photo for _, photo in batch], options)
            # Of several heads, only the mean is measured.
            pairs = zip(batch, found, strict=True)
            return {image.image_id: replace(first, heads=None) for (image, _), (first, *_) in pairs}

        batches = opened(((image, image.path) for image in images), failed, captioner.device)
        is_random = captioner.samples_cells(options.at_test)  # then batches must come in one order
        device = captioner.device
        results = map(captioned, batches) if is_random else parallel_map(captioned, batches, device)
        for found in results:
            captions |= found
            bar.update(len(found))
    return captions


def score_texts(
    texts: Mapping[ImageId, str],
    images: Sequence[CaptionedImage],
    *,
    training_captions: Sequence[str] | None = None,
    time_limit_s: float = 600.0,
    signature: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Score captions of any model; return the content of `results.json` (docs/evaluation.md).

    Its "captions" are what pycocotools' loadRes reads.

    Args:
        training_captions: Captions that are not among these count as novel; None counts none.
        time_limit_s: Seconds for the scorers that are Java programs.
        signature: Entries to add to the results' signature.
    """
    references = {image.image_id: image.captions for image in images}
    names = {image.image_id: image.path.name for image in images}
    logger.info("scoring the captions")
    scores = score_captions(texts, references, time_limit_s=time_limit_s)
    return {
        "metrics": scores["metrics"],
        "num_images": len(texts),
        "captions": [{"image_id": i, "caption": text} for i, text in texts.items()],
        "signature": {
            **scores["signature"],
            **(signature or {}),
            "photos": digest_of(names, references),
        },
        "images": [{**image, "file_name": names[image["image_id"]]} for image in scores["images"]],
        "intervals": bootstrap_intervals(ImageScores.of(scores["images"])),
        "statistics": corpus_statistics(list(texts.values()), training_captions),
        "bias": bias_counts(texts, references),
    }


def measure_grounding(
    captioner: Captioner,
    captions: Mapping[ImageId, Caption],
    images: Sequence[CaptionedImage],
    objects: Objects,
    at_test: HardAttentionMode | None = None,
) -> dict[str, object]:
    """Return the grounding of the model's captions (by image id), and of first references."""
    written: list[GroundedWord] = []
    given: list[GroundedWord] = []
    tokenizer = captioner.vocabulary.tokenizer
    for image in progress_bar(images, desc="grounding", unit="photo"):
        key = objects.image(image.path)
        if key is None:
            continue
        written += ground(in_whole_words(captions[image.image_id], tokenizer), key, objects)
        for reference in [text for text in image.captions if tokenizer.split(text)][:1]:
            try:
                caption = captioner.score(image.path, reference, at_test=at_test)
                given += ground(in_whole_words(caption, tokenizer), key, objects)
            except CaptionerError as error:  # a text longer than the model can read
                logger.warning(f"{image.path}: its first reference is left out: {error}")
    return {"captions": grounding_summary(written), "references": grounding_summary(given)}


def _replacements(
    captioner: Captioner, images: Sequence[CaptionedImage], at_test: HardAttentionMode | None
) -> dict[str, dict[str, Any]]:
    """Measure what reference captions lose when attention or the attended cells are replaced."""
    from captioner.evaluation.faithfulness import AttentionMeasure, attention_summary

    measure = AttentionMeasure(captioner.model.decoder)
    rows = []
    for image in progress_bar(images, desc="attention", unit="photo"):
        words = [captioner.vocabulary.tokenizer.split(text) for text in image.captions]
        tokens = [captioner.vocabulary.encode(text) for text in words if text]
        if not tokens:
            continue
        try:
            grid, _ = captioner.encode([image.path])
            with hard_attention_mode(at_test):
                rows.append(measure(grid, tokens[:MEASURED_REFERENCES]))
        except (ImageError, ConfigError) as error:  # unreadable, or longer than the model reads
            logger.warning(f"{image.path}: left out: {error}")
    return attention_summary(rows)
