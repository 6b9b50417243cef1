"""The results file of an evaluation, and statistics of a set of captions."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from captioner.errors import DataError
from captioner.evaluation.scorers import tokenize


def write_results(
    path: Path,
    *,
    metrics: Mapping[str, float | None],
    captions: Mapping[int, str] | Mapping[str, str] | Mapping[int | str, str],
    signature: Mapping[str, object],
    statistics: Mapping[str, float] | None = None,
) -> None:
    """Write results.json: metrics, num_images, captions in COCO results form, signature.

    The file appears whole or not at all, and its folder is made where it is missing. "captions" is
    what pycocotools' loadRes reads: [{"image_id": ..., "caption": ...}, ...].

    Raises:
        DataError: the file cannot be written there.
    """
    content: dict[str, object] = {
        "metrics": dict(metrics),
        "num_images": len(captions),
        "captions": [
            {"image_id": image_id, "caption": text} for image_id, text in captions.items()
        ],
        "signature": dict(signature),
    }
    if statistics is not None:
        content["statistics"] = dict(statistics)
    # NaN is no JSON: it would make a file that other languages cannot read.
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    with _partial(path) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        os.replace(file.name, path)


def check_writable(path: Path) -> None:
    """Find out, before the work, whether `write_results` can write there; makes the folder.

    Raises:
        DataError: it cannot.
    """
    with _partial(path):
        pass


@contextlib.contextmanager
def _partial(path: Path) -> Iterator[IO[str]]:
    """A file beside `path` for what will be its content; what is not renamed vanishes."""
    if os.path.isdir(path):
        raise DataError(f"cannot write {path}, which is a folder; name a file in it")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("w", encoding="utf-8") as file:
                yield file
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot write {path} ({error.strerror}); name a file in a folder that can be written"
        ) from error


def corpus_statistics(captions: Sequence[str]) -> dict[str, float]:
    """How varied a set of captions is, counted in lower-cased words without punctuation.

    num_captions, distinct_ratio (different captions / captions), vocabulary_used (different
    words), mean_length_words. All zero for no captions.
    """
    tokenised = [tokenize(caption) for caption in captions]
    words = [word for caption in tokenised for word in caption.split()]
    count = max(1, len(tokenised))
    return {
        "num_captions": len(tokenised),
        "distinct_ratio": len(set(tokenised)) / count,
        "vocabulary_used": len(set(words)),
        "mean_length_words": len(words) / count,
    }
