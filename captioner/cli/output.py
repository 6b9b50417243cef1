"""Options and output that `captioner caption` and `captioner score` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from PIL import Image

from captioner.cli import MAX_WORDS, show, whole_number, whole_number_up_to
from captioner.cli.lines import json_line, text_lines
from captioner.config import HardAttentionMode
from captioner.errors import CaptionerError
from captioner.files import save_bytes
from captioner.log import printable

if TYPE_CHECKING:
    from captioner.captioner import Captioner
    from captioner.config import HardAttentionMode
    from captioner.types import Caption
    from captioner.visualization import Entry, OverlayStyle


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for printing, for drawing, and for hard attention."""
    parser.add_argument("--output", type=Path, metavar="DIR", help="draw attention sheets here")
    parser.add_argument(
        "--save",
        type=_kinds,
        default=None,
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
        type=_share,
        default=None,
        help="strength of the style, 0 to 1 (default: 0.75 for light, 0.65 for colour and mask)",
    )
    parser.add_argument(
        "--threshold",
        type=_heat,
        default=0.0,
        metavar="X",
        help="leave out attention below X times uniform",
    )
    parser.add_argument("--layer", type=whole_number, help="maps of this layer (default: the last)")
    parser.add_argument(
        "--head", type=whole_number, help="maps of this head (default: the mean of all)"
    )
    add_at_test(parser)
    parser.add_argument(
        "--paths",
        type=whole_number_up_to(MAX_WORDS),
        default=0,
        metavar="M",
        help="with hard attention and --output: draw M sampled paths of attention",
    )


KINDS = ("png", "pdf", "svg", "words", "gif", "html", "matrix", "npz")
COMPARED_KINDS = ("png", "pdf", "svg", "html")  # that can show several models
GALLERY = "gallery.html"


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(kind.strip().lower() for kind in text.split(","))
    if kinds == ("all",):
        return ("all",)
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(
                f"'{kind}' is none of {', '.join(KINDS)}; separate several by commas"
            )
    return kinds


def _share(text: str) -> float:
    return _number(text, most=1.0, expected="a number from 0 to 1")


def _heat(text: str) -> float:
    return _number(text, most=float("inf"), expected="a number from 0 up")


def _number(text: str, *, most: float, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most or value == float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not {expected}")
    return value


def add_at_test(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--at-test",
        choices=get_args(HardAttentionMode),
        help="how hard attention chooses its cells (default: the model's setting)",
    )


def check_output_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse options that contradict each other; then `save` holds the kinds to save."""
    for option in ("save", "words", "paths"):
        if getattr(arguments, option) and arguments.output is None:
            parser.error(f"argument --{option}: needs --output, the folder to draw in")
    compares = bool(getattr(arguments, "compare", None))
    possible = COMPARED_KINDS if compares else KINDS
    kinds = arguments.save or ("png",)
    if kinds == ("all",):
        kinds = possible
    for kind in kinds:
        if kind not in possible:
            parser.error(f"argument --save: {kind} shows one model, so not with --compare")
    if arguments.words and not compares:
        kinds = (*kinds, "words")
    arguments.save = tuple(dict.fromkeys(kinds))


def check_attention_options(arguments: argparse.Namespace, models: Sequence[Captioner]) -> None:
    """Refuse options of hard attention if no model has it; models without it ignore them.

    Raises:
        CaptionerError: No model has hard attention.
    """
    option = "--at-test" if arguments.at_test else "--paths" if arguments.paths else None
    if option and not any(captioner.has_hard_attention for captioner in models):
        raise CaptionerError(f"{option}: needs a model with hard attention, such as --model hard")


def attention_options(arguments: argparse.Namespace, captioner: Captioner) -> dict[str, Any]:
    """Return the arguments of hard attention for Captioner.caption and score."""
    if not captioner.has_hard_attention:
        return {}
    return {"at_test": arguments.at_test, "paths": arguments.paths}


def samples_cells(captioner: Captioner, at_test: HardAttentionMode | None, paths: int = 0) -> bool:
    """Return whether cells are sampled: then batches keep their order, to sample the same again."""
    mode = at_test or captioner.config.attention.at_test
    return captioner.has_hard_attention and (mode == "sample" or paths > 0)


def _of_chosen_head(arguments: argparse.Namespace, caption: Caption) -> Caption:
    """Return the caption with the maps of --layer and --head."""
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
        *,
        names: Mapping[Path, str] | None = None,
    ) -> None:
        """Remember the options.

        Args:
            names: NAME under which the pictures of each photo are saved; None takes the names of
                their files, with as much in front as tells them apart.
        """
        self.arguments, self.failed = arguments, failed
        self.names = dict(names or {})
        self.entries: list[Entry] = []
        if arguments.output and not names:
            from captioner.visualization import output_names

            self.names = dict(zip(paths, output_names(paths), strict=True))

    def write(
        self,
        path: Path,
        image: Image.Image,
        caption: Caption,
        *,
        model: str,
        scored: bool = False,
    ) -> list[Path]:
        """Print a caption and save its pictures; if those cannot be saved, report why not.

        Args:
            model: Name of the model, for pages.
            scored: Print the log-probability of the caption.

        Returns:
            The files that were saved.
        """
        chosen = _of_chosen_head(self.arguments, caption)
        pictures, problem = self._saved(lambda: self._save(path, image, chosen, [(model, caption)]))
        least = getattr(self.arguments, "min_confidence", None)
        if self.arguments.json:
            text = json_line(path, chosen, pictures, min_confidence=least)
        else:
            text = text_lines(
                path, [(model, caption)], pictures, min_confidence=least, with_total=scored
            )
        show(text)
        if problem:
            self.failed(path, problem)
        return pictures

    def compare(
        self, path: Path, image: Image.Image, captions: list[tuple[str, Caption]]
    ) -> list[Path]:
        """Print the caption of each model, draw them on one sheet, and return the files saved."""
        chosen = [(name, _of_chosen_head(self.arguments, caption)) for name, caption in captions]
        pictures, problem = self._saved(
            lambda: self._save_comparison(path, image, chosen, captions)
        )
        least = getattr(self.arguments, "min_confidence", None)
        if self.arguments.json:
            for name, caption in chosen:
                show(json_line(path, caption, pictures, min_confidence=least, model=name))
        else:
            show(text_lines(path, captions, pictures, min_confidence=least))
        if problem:
            self.failed(path, problem)
        return pictures

    def add_to_gallery(self, path: Path, text: str) -> None:
        """List the page of a photo that an earlier run captioned.

        Raises:
            ImageError: The photo cannot be read any more.
        """
        from captioner.data.transforms import open_image
        from captioner.visualization import Entry, sheet_name

        page = sheet_name(self.names[path], "html")
        self.entries.append(Entry.of(open_image(path), name=path.name, page=page, caption=text))

    def finish(self) -> None:
        """Save the gallery of several photos' pages.

        Raises:
            CaptionerError: It cannot be saved.
        """
        if len(set(self.names.values())) > 1 and self.entries:
            from captioner.visualization import gallery_page

            file = self.arguments.output / GALLERY
            save_bytes(gallery_page(self.entries).encode(errors="replace"), file)
            if not self.arguments.json:
                show(printable(file))

    def _saved(
        self, saving: Callable[[], Iterator[Path]]
    ) -> tuple[list[Path], CaptionerError | None]:
        """Return the files that could be saved, and why the next could not."""
        pictures: list[Path] = []
        if self.arguments.output is None:
            return pictures, None
        try:
            for picture in saving():
                pictures.append(picture)
        except CaptionerError as error:
            return pictures, error
        return pictures, None

    def _style(self) -> OverlayStyle:
        from captioner.visualization import OverlayStyle

        options = self.arguments
        return OverlayStyle(
            kind=options.style,
            smooth=not options.cells,
            colour_map=options.colour_map,
            opacity=options.opacity,
            threshold=options.threshold,
        )

    def _save(
        self,
        path: Path,
        image: Image.Image,
        caption: Caption,
        with_heads: list[tuple[str, Caption]],
    ) -> Iterator[Path]:
        """Save the chosen kinds, yielding the name of each file once it is there."""
        from captioner import visualization as v

        style, name, folder = self._style(), self.names[path], self.arguments.output
        for kind in self.arguments.save:
            file = folder / v.sheet_name(name, kind)
            if kind == "png":
                v.save_png(v.attention_sheet(image, caption, style), file)
            elif kind in ("pdf", "svg"):
                v.vector_sheet(image, caption, style).save(file)
            elif kind == "gif":
                save_bytes(v.caption_gif(image, caption, style), file)
            elif kind == "npz":
                v.save_npz(v.caption_arrays(caption), file)
            elif kind == "html":
                self._save_page(path, image, with_heads, file)
            elif kind == "words":
                pictures = v.word_images(image, caption, style)
                for picture, word in zip(pictures, v.word_names(name, caption.words), strict=True):
                    v.save_png(picture, folder / word)
                    yield folder / word
            elif kind == "matrix":
                file = folder / v.matrix_name(name)
                v.save_png(v.alignment_matrix(caption, style), file)
                for vector in {"pdf", "svg"} & set(self.arguments.save):
                    further = folder / v.matrix_name(name, vector)
                    v.vector_matrix(caption, style).save(further)
                    yield further
            if kind != "words":
                yield file

    def _save_comparison(
        self,
        path: Path,
        image: Image.Image,
        captions: list[tuple[str, Caption]],
        with_heads: list[tuple[str, Caption]],
    ) -> Iterator[Path]:
        from captioner import visualization as v

        style = self._style()
        for kind in self.arguments.save:
            file = self.arguments.output / v.comparison_name(self.names[path], kind)
            if kind == "png":
                v.save_png(v.comparison_sheet(image, captions, style), file)
            elif kind == "html":
                self._save_page(path, image, with_heads, file)
            else:
                v.vector_comparison(image, captions, style).save(file)
            yield file

    def _save_page(
        self, path: Path, image: Image.Image, captions: list[tuple[str, Caption]], file: Path
    ) -> None:
        """Save a page of captions with all their heads, among which its reader can choose."""
        from captioner.visualization import Entry, caption_page

        several = len(set(self.names.values())) > 1
        page = caption_page(
            image,
            captions,
            name=path.name,
            style=self._style(),
            layer=self.arguments.layer,
            head=self.arguments.head,
            gallery=GALLERY if several else None,
        )
        save_bytes(page.encode(errors="replace"), file)
        if several:
            text = captions[0][1].text
            self.entries.append(Entry.of(image, name=path.name, page=file.name, caption=text))
