"""Caption the images of a data set, score the captions and measure their attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from captioner.data.captioned import CaptionedImage, Split, with_words
from captioner.data.opening import opened
from captioner.data.tars import ImagePath
from captioner.data.transforms import open_image
from captioner.errors import CaptionerError, ConfigError, DataError, ImageError
from captioner.evaluation.bias import bias_counts
from captioner.evaluation.grounding import GroundedWord, ground, in_whole_words
from captioner.evaluation.grounding import summary as grounding_summary
from captioner.evaluation.intervals import ImageScores, bootstrap_intervals
from captioner.evaluation.metrics import score_captions
from captioner.evaluation.objects import ImageKey, Objects
from captioner.evaluation.results import digest_of, results_of
from captioner.evaluation.statistics import (
    OBJECTS,
    corpus_statistics,
    scores_by_group,
    scores_by_length,
)
from captioner.log import logger, progress_bar
from captioner.runtime.parallel import parallel_map
from captioner.types import Caption

if TYPE_CHECKING:
    from PIL import Image

    from captioner.captioner import Captioner
    from captioner.config import HardAttentionMode
    from captioner.generation.confidence import Calibrator

ImageId = int | str
Removal = Literal["delete", "blur"]
MEASURED_REFERENCES = 2  # references of an image on which attention is measured


@dataclass(frozen=True)
class AttentionSettings:
    """Further measurements of attention.

    Attributes:
        objects: COCO's instances; measures whether attention lies on the objects that words name.
        boxes: Use the objects' boxes instead of their masks.
        faithfulness: Number of images on which attention is replaced and cells are deleted; 0 is
            none.
        removal: How the deletion test removes cells: `delete` them from the grid, or `blur` the
            image there.
    """

    objects: Objects | None = None
    boxes: bool = False
    faithfulness: int = 0
    removal: Removal = "delete"


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation.

    Attributes:
        results: The content of `results.json` (docs/evaluation.md).
        captions: Captions by image id, of all images that could be read.
        unreadable: Reasons why images could not be read, by image id.
        missing: Images of the data set that are not there.
        wordless: References that were left out for want of words, each with its image.
    """

    results: dict[str, Any]
    captions: dict[ImageId, Caption]
    unreadable: dict[ImageId, str] = field(default_factory=dict)
    missing: list[ImagePath] = field(default_factory=list)
    wordless: list[tuple[ImagePath, str]] = field(default_factory=list)


def evaluate(
    captioner: Captioner,
    images: Sequence[CaptionedImage],
    *,
    beam_size: int | None = None,
    at_test: HardAttentionMode | None = None,
    training_captions: Sequence[str] | None = None,
    attention: AttentionSettings | None = None,
    time_limit_s: float = 600.0,
    signature: Mapping[str, object] | None = None,
) -> Evaluation:
    """Caption images and score the captions against their references.

    Args:
        images: Images with references, such as `read_split(...)` returns.
        beam_size: None is the model's.
        at_test: How hard attention chooses its cell; None is the model's way.
        training_captions: Captions that are not among these count as novel; None counts none.
        time_limit_s: Seconds for the scorers that are Java programs.
        signature: Entries to add to the results' signature.

    Raises:
        DataError: No image can be read or none has references.
        ConfigError: A setting that cannot be used.
    """
    attention = attention or AttentionSettings()
    images, wordless = with_words(_checked(images))
    if sentence := Split(images, [], wordless=wordless).wordless_sentence():
        logger.warning(sentence)
    captions, unreadable = caption_images(captioner, images, beam_size=beam_size, at_test=at_test)
    if not captions:
        raise DataError(f"none of the {len(images)} photos can be read")
    known = [image for image in images if image.image_id in captions and image.captions]
    written = CaptionSet(captioner, known, captions, beam_size, at_test)
    results = written.score(
        training_captions=training_captions,
        objects=attention.objects,
        time_limit_s=time_limit_s,
        signature=signature,
    )
    results |= written.measure_attention(attention)
    return Evaluation(results, captions, unreadable, wordless=wordless)


def _checked(images: Sequence[CaptionedImage]) -> list[CaptionedImage]:
    """Return the images.

    Raises:
        DataError: They are no images with captions, or two have the same id.
    """
    images = list(images)
    for image in images:
        if not isinstance(image, CaptionedImage):
            raise DataError(
                f"images: a value of type {type(image).__name__} is not accepted; use "
                "CaptionedImage, as read_split returns them"
            )
        if isinstance(image.captions, str):  # its letters would be the references
            raise DataError(f"{image.path}: captions must be a tuple of strings, not a string")
    counts = Counter(image.image_id for image in images)
    if len(counts) < len(images):
        twice, _ = counts.most_common(1)[0]
        raise DataError(f"the image id {twice!r} is there twice; give each image its own")
    return images


def caption_images(
    captioner: Captioner,
    images: Sequence[CaptionedImage],
    *,
    beam_size: int | None = None,
    at_test: HardAttentionMode | None = None,
    on_unreadable: Callable[[ImagePath, ImageError], None] | None = None,
) -> tuple[dict[ImageId, Caption], dict[ImageId, str]]:
    """Caption the images that can be read, in batches and with a progress bar.

    Args:
        on_unreadable: Called with each image that cannot be read, and the reason.

    Returns:
        Captions by image id, and by image id the reasons why others could not be read.
    """
    captions: dict[ImageId, Caption] = {}
    unreadable: dict[ImageId, str] = {}
    with progress_bar(total=len(images), unit="photo") as bar:

        def failed(image: CaptionedImage, error: ImageError) -> None:
            bar.update()
            unreadable[image.image_id] = str(error)
            if on_unreadable:
                on_unreadable(image.path, error)

        def captioned(batch: list[tuple[CaptionedImage, Image.Image]]) -> dict[ImageId, Caption]:
            found = captioner.caption_batch(
                [opened_image for _, opened_image in batch], beam_size=beam_size, at_test=at_test
            )
            # Of several heads, only the mean is measured.
            pairs = zip(batch, found, strict=True)
            return {image.image_id: replace(caption, heads=None) for (image, _), caption in pairs}

        batches = opened(((image, image.path) for image in images), failed, captioner.device)
        if captioner.samples_cells(at_test):  # batches must come in one order
            results: Iterator[dict[ImageId, Caption]] = map(captioned, batches)
        else:
            results = parallel_map(captioned, batches, captioner.device)
        for found in results:
            captions |= found
            bar.update(len(found))
    return captions, unreadable


@dataclass(frozen=True)
class CaptionSet:
    """Captions that a model wrote for images with references, to be scored.

    Attributes:
        captioner: The model.
        images: Images with references; each has a caption.
        captions: Captions by image id.
        beam_size, at_test: The settings that they were written with, as for `evaluate`.
    """

    captioner: Captioner
    images: Sequence[CaptionedImage]
    captions: Mapping[ImageId, Caption]
    beam_size: int | None = None
    at_test: HardAttentionMode | None = None

    def score(
        self,
        *,
        training_captions: Sequence[str] | None = None,
        objects: Objects | None = None,
        time_limit_s: float = 600.0,
        signature: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        """Return metrics, intervals, groups and statistics as `results.json` has them.

        Args:
            training_captions, time_limit_s, signature: As for `evaluate`.
            objects: Also score by the number of objects in an image.

        Raises:
            DataError: There is nothing to score.
        """
        images = self.images
        texts = {image.image_id: self.captions[image.image_id].text for image in images}
        references = {image.image_id: image.captions for image in images}
        names = {image.image_id: image.path.name for image in images}
        scores = score_captions(texts, references, time_limit_s=time_limit_s)
        per_image = ImageScores.of(scores.per_image, scores.counts)
        groups = {
            "words in the references": scores_by_length(per_image, references),
            "words in the caption": scores_by_length(per_image, {i: [t] for i, t in texts.items()}),
        }
        if objects:
            counts = {i: objects.count(key) for i, key in object_keys(objects, images).items()}
            if by_objects := scores_by_group(per_image, counts, OBJECTS):
                groups["objects in the photo"] = by_objects
        further: dict[str, object] = {"bias": bias_counts(texts, references)}
        if self.captioner.calibrator is not None:
            further["calibration"] = self._calibration(
                self.captioner.calibrator, scores.per_image["CIDEr"]
            )
        config = self.captioner.config
        mode = self.at_test or config.attention.at_test
        return results_of(
            scores,
            texts,
            signature={
                **scores.signature,
                **vars(config.decoding),
                "beam_size": self.beam_size or config.decoding.beam_size,
                "at_test": mode if self.captioner.has_hard_attention else None,
                **(signature or {}),
                "photos": digest_of(names, references),
            },
            names=names,
            intervals=bootstrap_intervals(per_image),
            statistics=corpus_statistics(list(texts.values()), training_captions),
            groups=groups,
            **further,
        )

    def _calibration(self, calibrator: Calibrator, cider: Mapping[Any, float]) -> dict[str, Any]:
        """Return how well the captions' confidence agrees with their CIDEr-D (of these images)."""
        from captioner.evaluation.calibration import calibration_report

        ids = [image.image_id for image in self.images]
        confidence = np.array([self.captions[i].confidence for i in ids], dtype=np.float64)
        right = np.array([cider[i] >= calibrator.right_from for i in ids])
        known = ~np.isnan(confidence)  # of a caption without one, None has become NaN
        return {
            "right_from": calibrator.right_from,
            **calibration_report(confidence[known], right[known], calibrator.threshold),
        }

    def measure_attention(self, settings: AttentionSettings) -> dict[str, Any]:
        """Return the measurements of attention that the settings ask for.

        Returns:
            `grounding` and `regions` if there are objects; `attention` and `faithfulness` if the
            setting `faithfulness` is above 0.
        """
        found: dict[str, Any] = {}
        if settings.objects:
            found["grounding"] = self._grounding(settings.objects, boxes=settings.boxes)
            found["regions"] = "boxes" if settings.boxes else "masks"
        if settings.faithfulness:
            first = replace(
                self,
                images=self.images[: settings.faithfulness],
                captioner=self.captioner.in_torch(),
            )
            found["attention"] = first._replacements()
            found["faithfulness"] = first._deletions(settings.removal)
        return found

    def _grounding(self, objects: Objects, *, boxes: bool) -> dict[str, object]:
        """Return the grounding of the model's captions, and of the images' first references."""
        written: list[GroundedWord] = []
        given: list[GroundedWord] = []
        keys = object_keys(objects, self.images)
        known = [image for image in self.images if image.image_id in keys]
        tokenizer = self.captioner.vocabulary.tokenizer
        for image in progress_bar(known, desc="grounding", unit="photo"):
            key = keys[image.image_id]
            caption = in_whole_words(self.captions[image.image_id], tokenizer)
            written += ground(caption, key, objects, boxes=boxes)
            reference = next((text for text in image.captions if tokenizer.split(text)), None)
            if reference is None:
                continue
            try:
                caption = self.captioner.score(image.path, reference, at_test=self.at_test)
            except CaptionerError as error:  # a text longer than the model can read
                logger.warning(f"{image.path}: its first reference is left out: {error}")
            else:
                given += ground(in_whole_words(caption, tokenizer), key, objects, boxes=boxes)
        return {"captions": grounding_summary(written), "references": grounding_summary(given)}

    def _replacements(self) -> dict[str, dict[str, Any]]:
        """Measure what reference captions lose when attention or the attended cells are replaced.

        Returns:
            For each name of the table in docs/evaluation.md its `value` and `interval`.
        """
        from captioner.evaluation.faithfulness import AttentionMeasure, attention_summary

        captioner = self.captioner
        measure = AttentionMeasure(captioner.model.decoder, captioner.mix_cells)
        rows = []
        for image in progress_bar(self.images, desc="attention", unit="photo"):
            words = [captioner.vocabulary.tokenizer.split(text) for text in image.captions]
            tokens = [captioner.vocabulary.encode(text) for text in words if text]
            if not tokens:
                continue
            try:
                grid, _ = captioner.encode([open_image(image.path)])
                with captioner.attention_mode(self.at_test):
                    rows.append(measure(grid, tokens[:MEASURED_REFERENCES]))
            except (ImageError, ConfigError) as error:  # unreadable, or longer than the model reads
                logger.warning(f"{image.path}: left out: {error}")
        return attention_summary(rows)

    def _deletions(self, removal: Removal) -> dict[str, object]:
        """Return the results of the deletion test on the model's own captions."""
        from captioner.evaluation.faithfulness import (
            deletion,
            deletion_summary,
            removal_in_grid,
            removal_in_image,
        )

        captioner = self.captioner
        generator = np.random.default_rng(0)
        falls = []
        for image in progress_bar(self.images, desc="faithfulness", unit="photo"):
            caption = self.captions[image.image_id]
            if not caption.words:
                continue
            whole = open_image(image.path)
            grid, (geometry,) = captioner.encode([whole])
            remove = removal_in_grid(grid)
            if removal == "blur":
                remove = removal_in_image(grid, whole, geometry, lambda im: captioner.encode(im)[0])
            tokens = captioner.vocabulary.encode(caption.words)
            maps = caption.maps.reshape(len(tokens), -1)
            with captioner.attention_mode(self.at_test):
                falls.append(
                    deletion(captioner.model.decoder, grid, tokens, maps, generator, remove)
                )
        return {"removal": removal, **deletion_summary(falls)}


def object_keys(objects: Objects, images: Sequence[CaptionedImage]) -> dict[ImageId, ImageKey]:
    """Return the keys among the objects of the images that they know, by image id."""
    keys = {image.image_id: objects.image(image.path) for image in images}
    return {image_id: key for image_id, key in keys.items() if key is not None}
