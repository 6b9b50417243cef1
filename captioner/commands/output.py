"""What caption and score share: how to look, what to print, what to draw."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from captioner.commands import show, whole_number
from captioner.errors import CaptionerError

if TYPE_CHECKING:
    from captioner.grid import Caption
    from captioner.pipeline import Captioner


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """What to print and to draw, and how hard attention looks."""
    parser.add_argument("--output", type=Path, metavar="DIR", help="draw attention sheets here")
    parser.add_argument(
        "--words", action="store_true", help="with --output: also one picture a word"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a photo")
    parser.add_argument(
        "--cells", action="store_true", help="draw the grid's cells instead of a smooth map"
    )
    parser.add_argument(
        "--colour-map", choices=("cividis", "viridis"), default="cividis", help="colours of maps"
    )
    parser.add_argument("--layer", type=whole_number, help="maps of this layer (default: the last)")
    parser.add_argument(
        "--head", type=whole_number, help="maps of this head (default: the mean of all)"
    )
    add_at_test(parser)
    parser.add_argument(
        "--paths",
        type=whole_number,
        default=0,
        metavar="M",
        help="with hard attention and --output: draw M sampled ways of looking",
    )


def add_at_test(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--at-test",
        choices=("argmax", "expectation", "sample"),
        help="how hard attention looks (default: the model's own)",
    )


def check_output_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    for option in ("words", "paths"):
        if getattr(arguments, option) and arguments.output is None:
            parser.error(f"argument --{option}: needs --output, the folder to draw in")


def check_looking(arguments: argparse.Namespace, models: Sequence[Captioner]) -> None:
    """Refuse to look in a way that no model can; compared models without it do without."""
    asked = "--at-test" if arguments.at_test else "--paths" if arguments.paths else None
    if asked and not any(captioner.looks_hard for captioner in models):
        raise CaptionerError(f"{asked}: needs a model with hard attention, such as --model hard")


def looking_options(arguments: argparse.Namespace, captioner: Captioner) -> dict[str, Any]:
    """For Captioner.caption and score."""
    if not captioner.looks_hard:
        return {}
    return {"at_test": arguments.at_test, "paths": arguments.paths}


def of_asked_head(arguments: argparse.Namespace, caption: Caption) -> Caption:
    if arguments.layer is None and arguments.head is None:
        return caption
    return caption.of_head(arguments.layer, arguments.head)


class CaptionWriter:
    """Prints captions and saves pictures as the options say."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        paths: list[Path],
        failed: Callable[[Path, object], None],
    ) -> None:
        self.arguments, self.failed = arguments, failed
        self.names: dict[Path, str] = {}
        if arguments.output:
            from captioner.rendering import output_names

            self.names = dict(zip(paths, output_names(paths), strict=True))

    def write(
        self, path: Path, image: Image.Image, caption: Caption, *, scored: bool = False
    ) -> None:
        """Print the caption even when its pictures cannot be saved, and then say why not.

        scored: with the log-probability of the whole.
        """
        pictures: list[Path] = []
        problem: CaptionerError | None = None
        try:
            for picture in self._save(path, image, caption):
                pictures.append(picture)
        except CaptionerError as error:
            problem = error
        if self.arguments.json:
            line: dict[str, Any] = {"image": str(path), **caption.to_dict()}
            if pictures:
                line["pictures"] = [str(picture) for picture in pictures]
            text = json.dumps(line, ensure_ascii=False)
        else:
            total = float(caption.log_probs.sum()) + (caption.end_log_prob or 0.0)
            told = f" (log-probability {total:.2f})" if scored else ""
            text = "\n  ".join([f"{path}: {caption.text}{told}", *map(str, pictures)])
        show(text)
        if problem:
            self.failed(path, problem)

    def compare(self, path: Path, image: Image.Image, captions: list[tuple[str, Caption]]) -> None:
        """Print a caption a model, and draw them on one sheet."""
        sheet: Path | None = None
        problem: CaptionerError | None = None
        if self.arguments.output:
            from captioner.rendering import comparison_name, comparison_sheet, save_png

            sheet = self.arguments.output / comparison_name(self.names[path])
            try:
                save_png(comparison_sheet(image, captions, **self._look()), sheet)
            except CaptionerError as error:
                sheet, problem = None, error
        if self.arguments.json:
            for name, caption in captions:
                line = {"model": name, "image": str(path), **caption.to_dict()}
                if sheet:
                    line["pictures"] = [str(sheet)]
                show(json.dumps(line, ensure_ascii=False))
        else:
            lines = [f"{name}: {caption.text}" for name, caption in captions]
            show("\n  ".join([f"{path}", *lines, *([str(sheet)] if sheet else [])]))
        if problem:
            self.failed(path, problem)

    def _look(self) -> dict[str, Any]:
        return {"smooth": not self.arguments.cells, "colour_map": self.arguments.colour_map}

    def _save(self, path: Path, image: Image.Image, caption: Caption) -> Iterator[Path]:
        folder = self.arguments.output
        if folder is None:
            return
        from captioner.rendering import (
            attention_sheet,
            save_png,
            sheet_name,
            word_images,
            word_names,
        )

        options = self._look()
        name = self.names[path]
        sheet = folder / sheet_name(name)
        save_png(attention_sheet(image, caption, **options), sheet)
        yield sheet
        if self.arguments.words:
            pictures = word_images(image, caption, **options)
            for picture, file in zip(pictures, word_names(name, caption.words), strict=True):
                save_png(picture, folder / file)
                yield folder / file
