"""One caption as the lines that are printed for it: text for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.log import printable

if TYPE_CHECKING:
    from captioner.types import Caption


def is_withheld(confidence: float | None, least: float | None) -> bool:
    """Return whether a caption's confidence is below the least that the user accepts."""
    return least is not None and confidence is not None and confidence < least


def json_line(
    path: Path,
    caption: Caption,
    pictures: Sequence[Path],
    *,
    min_confidence: float | None = None,
    model: str | None = None,
) -> str:
    """Return a caption as a line of JSON: `image`, `pictures`, and the keys of `Caption.to_dict`.

    Args:
        caption: Caption of the photo; where it is withheld, all is null but its confidence.
        model: Name of the model, where several are compared.
    """
    line: dict[str, Any] = {} if model is None else {"model": model}
    line |= {"image": str(path), **caption.to_dict()}
    if is_withheld(caption.confidence, min_confidence):
        line |= {key: None for key in caption.to_dict() if not key.startswith("confidence")}
    if pictures:
        line["pictures"] = [str(picture) for picture in pictures]
    return json.dumps(line, ensure_ascii=False)


def text_lines(
    path: Path,
    captions: Sequence[tuple[str, Caption]],
    pictures: Sequence[Path],
    *,
    min_confidence: float | None = None,
    with_total: bool = False,
) -> str:
    """Return what a person reads: the photo and its caption, then the files, indented.

    Args:
        captions: Names of models and their captions; of a single one the name is not shown.
        with_total: Also the log-probability of the whole caption, its end included.
    """
    texts = []
    for _, caption in captions:
        text = printable(caption.text)
        if caption.is_unsure:
            text += " (unsure)"
        if with_total:
            text += f" (log-probability {caption.log_prob:.2f})"
        if is_withheld(caption.confidence, min_confidence):
            text = "(no caption)"
        texts.append(text)
    details = [printable(picture) for picture in pictures]
    if len(captions) == 1:
        return "\n  ".join([f"{printable(path)}: {texts[0]}", *details])
    named = [f"{printable(name)}: {text}" for (name, _), text in zip(captions, texts, strict=True)]
    return "\n  ".join([printable(path), *named, *details])
