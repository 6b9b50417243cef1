"""The results file of an evaluation: written in one step, and read again to compare two."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.errors import DataError
from captioner.files import save_bytes

if TYPE_CHECKING:
    from captioner.evaluation.intervals import ImageScores
    from captioner.evaluation.metrics import Scores


def results_of(
    scores: Scores,
    captions: Mapping[Any, str],
    *,
    signature: Mapping[str, object],
    names: Mapping[Any, str] | None = None,
    **further: object,
) -> dict[str, Any]:
    """Return the content of results.json; further fields are taken as given.

    "captions" is what pycocotools' loadRes reads: [{"image_id": ..., "caption": ...}, ...].
    "images" holds what `read_results` needs of each image, and its file name from `names`.
    """
    return {
        "metrics": scores.metrics,
        "num_images": len(captions),
        "captions": captions_list(captions),
        "signature": dict(signature),
        "images": [
            {
                "image_id": image_id,
                **({"file_name": names[image_id]} if names else {}),
                "scores": {name: each[image_id] for name, each in scores.per_image.items()},
                "counts": {name: each[image_id] for name, each in scores.counts.items()},
            }
            for image_id in captions
        ],
        **further,
    }


def captions_list(captions: Mapping[Any, str]) -> list[dict[str, Any]]:
    """Return captions as COCO's server takes them."""
    return [{"image_id": image_id, "caption": text} for image_id, text in captions.items()]


def write_json(path: Path, content: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write JSON; NaN is refused, because other languages could not read the file.

    Raises:
        CaptionerError: The file cannot be written there.
        ValueError: A number is NaN or infinite.
    """
    save_bytes((json.dumps(content, indent=1, allow_nan=False) + "\n").encode(), path)


def digest_of(names: Mapping[Any, str], references: Mapping[Any, Sequence[str]]) -> str:
    """Return a digest of the images and references of an evaluation, whatever their order.

    Results with the same digest can be compared.
    """
    rows = sorted(json.dumps([str(i), names[i], list(references[i])]) for i in references)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def read_results(path: Path) -> tuple[dict[str, Any], ImageScores]:
    """Return the signature of results, and the scores of each image, for comparisons.

    Raises:
        DataError: It is no file of results with scores.
    """
    import numpy as np

    from captioner.evaluation.intervals import ImageScores

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        images = content["images"]
        tables: dict[str, dict[str, dict[Any, Any]]] = {"scores": {}, "counts": {}}
        for image in images:
            for kind, table in tables.items():
                for name, value in image[kind].items():
                    # nor a number whose sum over images would overflow
                    if not (np.abs(np.asarray(value, dtype=float)) < 1e30).all():
                        raise ValueError(f"{name} is no number")
                    table.setdefault(name, {})[image["image_id"]] = value
        signature = content["signature"]
        if not isinstance(signature, dict):
            raise TypeError("signature")
        return signature, ImageScores.of(tables["scores"], tables["counts"])
    except OSError as error:
        raise DataError(
            f"cannot read {path} ({error.strerror}); name a file of captioner evaluate --output"
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise DataError(
            f"{path} has no scores of each image; give a results file that captioner evaluate "
            "--output wrote"
        ) from error
