"""Options and output that `captioner caption` and `captioner score` share: text, JSON, pictures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from PIL import Image

from captioner.cli import parsing, show
from captioner.config import HardAttentionMode
from captioner.errors import CaptionerError
from captioner.files import save_bytes
from captioner.log import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from captioner.captioner import Captioner
    from captioner.types import Caption
    from captioner.visualization import Entry

KINDS = ("png", "pdf", "svg", "words", "gif", "html", "matrix", "npz")
COMPARED_KINDS = ("png", "pdf", "svg", "html")  # that can show several models
GALLERY = "gallery.html"


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


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for printing, for drawing, and for hard attention."""
    parser.add_argument("--output", type=Path, metavar="DIR", help="draw attention sheets here")
    parser.add_argument(
        "--save",
        type=parsing.names_of((*KINDS, "all")),
        metavar="KINDS",
        help="with --output: what to save, separated by commas: png, pdf, svg (the sheet), words "
        "(one PNG a word), gif, html (a page to explore in a browser), matrix (words by cells), "
        "npz (the raw maps), or all (default: png)",
    )
    parser.add_argument("--words", action="store_true", help="with --output: also save words")
    parser.add_argument("--json", action="store_true", help="print one JSON object a photo")
    parser.add_argument(
        "--cells", action="store_true", help="draw the grid's cells instead of a smooth map"
    )
    parser.add_argument(
        "--style",
        choices=("light", "colour", "contour", "mask"),
        default="light",
        help="light: the photo in its colours, dimmed where attention is low and lit where it is "
        "high; colour: colours on the grey photo; contour: lines of equal attention; mask: the "
        "photo only dimmed (default: light)",
    )
    parser.add_argument(
        "--colour-map",
        choices=("viridis", "cividis"),
        default="viridis",
        help="of the styles colour and contour, and of matrices (default: viridis)",
    )
    parser.add_argument(
        "--opacity",
        type=parsing.number_from(0, 1),
        default=None,
        help="strength of the style, 0 to 1 (default: 0.75 for light, 0.65 for colour and mask)",
    )
    parser.add_argument(
        "--threshold",
        type=parsing.number_from(0),
        default=0.0,
        metavar="X",
        help="leave out attention below X times uniform",
    )
    parser.add_argument(
        "--layer", type=parsing.whole_number, help="maps of this layer (default: the last)"
    )
    parser.add_argument(
        "--head", type=parsing.whole_number, help="maps of this head (default: the mean of all)"
    )
    add_at_test(parser)
    parser.add_argument(
        "--paths",
        type=parsing.whole_number_from(1, parsing.MAX_WORDS),
        default=0,
        metavar="M",
        help="with hard attention and --output: draw M sampled paths of attention",
    )


def add_at_test(parser: argparse.ArgumentParser) -> None:
    """Add the option for how hard attention chooses its cells."""
    parser.add_argument(
        "--at-test",
        choices=get_args(HardAttentionMode),
        help="how hard attention chooses its cells (default: the model's setting)",
    )


def check_output_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse options that contradict each other; set `save` to the kinds of files to save."""
    for option in ("save", "words", "paths"):
        if getattr(arguments, option) and arguments.output is None:
            parser.error(f"argument --{option}: needs --output, the folder to draw in")
    if arguments.words and arguments.compare:
        parser.error("argument --words: shows one model, so not with --compare")
    possible = COMPARED_KINDS if arguments.compare else KINDS
    # With --write, sheets are drawn only where the options name them.
    kinds = arguments.save or (() if arguments.write and not arguments.words else ("png",))
    if "all" in kinds:
        kinds = possible
    for kind in kinds:
        if kind not in possible:
            parser.error(f"argument --save: {kind} shows one model, so not with --compare")
    if arguments.words:
        kinds = (*kinds, "words")
    arguments.save = tuple(dict.fromkeys(kinds))


def check_attention_options(arguments: argparse.Namespace, models: Sequence[Captioner]) -> None:
    """Refuse layers and heads that a model lacks, and options of hard attention if none has it.

    Where several models are compared, those without hard attention ignore its options.

    Raises:
        CaptionerError: There is no such layer or head, or no model has hard attention.
    """
    from captioner.types import check_head

    for captioner in models:
        check_head(arguments.layer, arguments.head, *captioner.attention_heads)
    option = "--at-test" if arguments.at_test else "--paths" if arguments.paths else None
    if option and not any(captioner.has_hard_attention for captioner in models):
        raise CaptionerError(f"{option}: needs a model with hard attention, such as --model hard")


def attention_options(arguments: argparse.Namespace, captioner: Captioner) -> dict[str, Any]:
    """Return the arguments of hard attention for Captioner.caption and score."""
    if not captioner.has_hard_attention:
        return {}
    return {"at_test": arguments.at_test, "paths": arguments.paths}


class CaptionWriter:
    """Prints captions and saves pictures as the options say.

    Args:
        names: NAME under which the pictures of each photo are saved.
        failed: Called with a photo whose pictures cannot be saved, and the reason.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        names: Mapping[Path, str],
        failed: Callable[[Path, object], None],
    ) -> None:
        self.arguments, self.names, self.failed = arguments, names, failed
        self.entries: dict[Path, Entry] = {}
        self.several = len(set(names.values())) > 1  # then a gallery leads to the pages
        self.content = "comparison" if arguments.compare else "attention"  # in the files' names
        if arguments.output is None:
            return
        from captioner.visualization import OverlayStyle

        self.style = OverlayStyle(
            kind=arguments.style,
            smooth=not arguments.cells,
            colour_map=arguments.colour_map,
            opacity=arguments.opacity,
            threshold=arguments.threshold,
        )

    def write(
        self,
        path: Path,
        image: Image.Image,
        captions: list[tuple[str, Caption]],
        *,
        scored: bool = False,
    ) -> list[Path]:
        """Print captions and save their pictures; if those cannot be saved, report why not.

        A caption that is withheld is not drawn.

        Args:
            captions: Names of models and their captions: of one, or of those to compare.
        """
        arguments = self.arguments
        chosen = captions
        if arguments.layer is not None or arguments.head is not None:
            chosen = [(n, c.of_head(arguments.layer, arguments.head)) for n, c in captions]
        least = arguments.min_confidence
        given = [not is_withheld(caption.confidence, least) for _, caption in captions]
        pictures: list[Path] = []
        problem: CaptionerError | None = None
        if arguments.output is not None and any(given):
            try:
                for picture in self._save(
                    path, image, list(compress(chosen, given)), list(compress(captions, given))
                ):
                    pictures.append(picture)
            except CaptionerError as error:
                problem = error
        if arguments.json:
            for name, caption in chosen:
                model = name if arguments.compare else None
                show(json_line(path, caption, pictures, min_confidence=least, model=model))
        else:
            show(text_lines(path, captions, pictures, min_confidence=least, with_total=scored))
        if problem:
            self.failed(path, problem)
        return pictures

    def add_to_gallery(self, path: Path, image: Image.Image, text: str, *, unsure: bool) -> None:
        """List the page of a photo in the gallery."""
        from captioner.visualization import Entry, picture_name

        page = picture_name(self.names[path], self.content, "html")
        entry = Entry.of(image, name=path.name, page=page, caption=text, unsure=unsure)
        self.entries[path] = entry

    def finish(self) -> None:
        """Save the gallery of several photos' pages.

        Raises:
            CaptionerError: It cannot be saved.
        """
        if self.several and self.entries:
            from captioner.visualization import gallery_page

            file = self.arguments.output / GALLERY
            save_bytes(gallery_page(list(self.entries.values())).encode(errors="replace"), file)
            if not self.arguments.json:
                show(printable(file))

    def _save(
        self,
        path: Path,
        image: Image.Image,
        captions: list[tuple[str, Caption]],
        with_heads: list[tuple[str, Caption]],
    ) -> Iterator[Path]:
        """Save the chosen kinds, yielding the name of each file once it is there."""
        from captioner import visualization as v

        style, name, folder = self.style, self.names[path], self.arguments.output
        caption = replace(captions[0][1], image=image)
        for kind in self.arguments.save:
            file = folder / v.picture_name(name, self.content, kind)
            if kind == "html":
                self._save_page(path, image, with_heads, file)
            elif self.arguments.compare and kind == "png":
                v.save_png(v.comparison_sheet(image, captions, style), file)
            elif self.arguments.compare:  # pdf or svg
                v.vector_comparison(image, captions, style).save(file)
            elif kind in ("png", "pdf", "svg", "gif", "npz"):
                v.save_caption(caption, file, style)
            elif kind == "words":
                pictures = v.word_images(image, caption, style)
                for picture, word in zip(pictures, v.word_names(name, caption.words), strict=True):
                    v.save_png(picture, folder / word)
                    yield folder / word
            elif kind == "matrix":
                file = folder / v.picture_name(name, "matrix")
                v.save_png(v.alignment_matrix(caption, style), file)
                for vector in {"pdf", "svg"} & set(self.arguments.save):
                    further = folder / v.picture_name(name, "matrix", vector)
                    v.vector_matrix(caption, style).save(further)
                    yield further
            if kind != "words":
                yield file

    def _save_page(
        self, path: Path, image: Image.Image, captions: list[tuple[str, Caption]], file: Path
    ) -> None:
        """Save a page of captions with all their heads, among which its reader can choose."""
        from captioner.visualization import caption_page

        page = caption_page(
            image,
            captions,
            name=path.name,
            style=self.style,
            layer=self.arguments.layer,
            head=self.arguments.head,
            gallery=GALLERY if self.several else None,
        )
        save_bytes(page.encode(errors="replace"), file)
        if self.several:
            first = captions[0][1]
            self.add_to_gallery(path, image, first.text, unsure=first.is_unsure)
