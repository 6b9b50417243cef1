"""Options and output that `captioner caption` and `captioner score` share: text, JSON, pictures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
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
    from captioner.cli.drawing import Drawer
    from captioner.types import Caption
    from captioner.visualization import Entry

KINDS = ("png", "pdf", "svg", "words", "gif", "html", "matrix", "npz")
COMPARED_KINDS = ("png", "pdf", "svg", "html")  # that can show several models
GALLERY = "gallery.html"


def is_withheld(confidence: float | None, least: float | None) -> bool:
    """Return whether a caption's confidence is below the least that the user accepts."""
    return least is not None and confidence is not None and confidence < least


def caption_note(
    caption: Caption, *, with_total: bool = False, min_confidence: float | None = None
) -> str:
    """Return a caption with its figures, for people."""
    confidence, notes = caption.confidence, []
    withheld = is_withheld(confidence, min_confidence)
    if confidence is not None:
        unsure = caption.is_unsure and not withheld
        below = f", below {caption.confidence_threshold:.2f}: unsure" if unsure else ""
        notes.append(f"confidence {confidence:.2f}{below}")
    if with_total:
        steps = len(caption.words) + (caption.end_log_prob is not None)
        notes.append(
            f"log-probability {caption.log_prob:.2f}, {caption.log_prob / steps:.2f} a word"
        )
    text = "no caption" if withheld else printable(caption.text)
    return f"{text} ({'; '.join(notes)})" if notes else text


def json_line(
    photo: Path | str,
    captions: Sequence[Caption],
    pictures: Sequence[Path] = (),
    *,
    min_confidence: float | None = None,
    model: str | None = None,
    as_list: bool = False,
    own: Caption | None = None,
) -> str:
    """Return a caption as a line of JSON: `image`, `pictures`, and the keys of `Caption.to_dict`.

    Args:
        captions: Captions of the photo, best first. Of one that is withheld all is null but its
            confidence.
        model: Name of the model, where several are compared.
        as_list: Also give all captions, as `captions`.
        own: With a caption that was given to the model, the one that it writes itself.
    """
    contents = []
    for caption in captions:
        content = caption.to_dict()
        if is_withheld(caption.confidence, min_confidence):
            content |= {key: None for key in content if not key.startswith("confidence")}
        contents.append(content)
    line: dict[str, Any] = {} if model is None else {"model": model}
    line |= {"image": str(photo), **contents[0]}
    if as_list:
        line["captions"] = [
            {**content, "log_prob": None if content["words"] is None else _log_prob(each)}
            for content, each in zip(contents, captions, strict=True)
        ]
    if own is not None:
        line["log_prob"] = _log_prob(captions[0])
        line["model_caption"] = {**own.to_dict(), "log_prob": _log_prob(own)}
    if pictures:
        line["pictures"] = [str(picture) for picture in pictures]
    return json.dumps(line)  # in ASCII, so that it is JSON in every locale


def _log_prob(caption: Caption) -> float:
    return round(caption.log_prob, 6)


def text_lines(
    photo: Path | str,
    captions: Sequence[tuple[str, Caption]],
    files: Sequence[Path] = (),
    *,
    others: Sequence[Caption] = (),
    min_confidence: float | None = None,
    with_total: bool = False,
) -> str:
    """Return what a person reads: the photo, its caption and its files on one line.

    Args:
        captions: Names of models and their captions. Several have a line each.
        others: Further captions of the same model, a line each.
        with_total: Also log-probabilities, with the caption's end. `others` is then the caption
            that the model writes itself, as a yardstick.
    """
    texts = [
        caption_note(caption, with_total=with_total, min_confidence=min_confidence)
        for caption in [*(caption for _, caption in captions), *others]
    ]
    written = ""
    if files:
        written = f" -> {printable(files[0])}"
        if len(files) > 1:
            written += f" and {len(files) - 1} more files" if len(files) > 2 else " and 1 more file"
    if len(captions) > 1:
        names = [name for name, _ in captions]
        lines = [f"{printable(name)}: {text}" for name, text in zip(names, texts, strict=True)]
        return "\n  ".join([f"{printable(photo)}{written}", *lines])
    lines = [
        f"the model's own: {text}" if with_total else f"{place}. {text}"
        for place, text in enumerate(texts[1:], start=2)
    ]
    return "\n  ".join([f"{printable(photo)}: {texts[0]}{written}", *lines])


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for printing, for drawing, and for hard attention."""
    parser.add_argument("--output", type=Path, metavar="DIR", help="draw attention sheets here")
    parser.add_argument(
        "--save",
        type=parsing.names_of((*KINDS, "all")),
        metavar="KINDS",
        help="with --output: what to save, separated by commas: png, pdf, svg (the sheet), words "
        "(one PNG a word), gif, html (a page to explore in a browser), matrix (words by cells), "
        "npz (the raw maps), or all (default: png); words come with a sheet",
    )
    parser.add_argument("--words", action="store_true", help="the same as words in --save")
    parser.add_argument("--json", action="store_true", help="print one JSON object a photo")
    parser.add_argument(
        "--cells", action="store_true", help="draw the grid's cells instead of a smooth map"
    )
    parser.add_argument(
        "--style",
        choices=("focus", "light", "colour", "contour", "mask"),
        default="focus",
        help="focus: the photo's own colours where attention is high, grey where it is low, and "
        "lines at 2, 4 and 8 times uniform; light: dimmed where attention is low and lit where it "
        "is high; colour: colours on the grey photo; contour: only the lines; mask: only dimmed "
        "(default: focus)",
    )
    parser.add_argument(
        "--colour-map",
        choices=("viridis", "cividis"),
        default="viridis",
        help="of the style colour and of matrices (default: viridis)",
    )
    parser.add_argument(
        "--opacity",
        type=parsing.number_from(0, 1),
        default=None,
        help="strength of the style, 0 to 1 (default: 1 for focus, 0.75 for light, 0.65 for "
        "colour and mask)",
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
    if problem := parsing.not_a_folder(arguments.output):
        parser.error(f"argument --output: {problem}")
    possible = COMPARED_KINDS if arguments.compare else KINDS
    # With --write, sheets are drawn only where the options name them.
    kinds = arguments.save or (() if arguments.write or arguments.words else ("png",))
    if arguments.words:
        kinds = (*kinds, "words")
    if "all" in kinds:
        kinds = possible
    for kind in kinds:
        if kind not in possible:
            parser.error(f"argument --save: {kind} shows one model, so not with --compare")
    if "words" in kinds and not {"png", "pdf", "svg"} & {*kinds}:
        kinds = ("png", *kinds)  # single words say little without the sheet of all
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
        names: Mapping[Path | str, str],
        failed: Callable[[Path | str, object], None],
    ) -> None:
        self.arguments, self.names, self.failed = arguments, names, failed
        self.entries: dict[Path | str, Entry] = {}
        self.several = len(set(names.values())) > 1  # then a gallery leads to the pages
        self.content = "comparison" if arguments.compare else "attention"  # in the files' names
        self.drawer: Drawer | None = None
        if arguments.output is None:
            return
        from captioner.cli.drawing import Drawer, Settings
        from captioner.visualization import OverlayStyle

        style = OverlayStyle(
            kind=arguments.style,
            smooth=not arguments.cells,
            colour_map=arguments.colour_map,
            opacity=arguments.opacity,
            threshold=arguments.threshold,
        )
        self.drawer = Drawer(
            Settings(
                kinds=arguments.save,
                folder=arguments.output,
                style=style,
                compare=bool(arguments.compare),
                layer=arguments.layer,
                head=arguments.head,
                gallery=GALLERY if self.several else None,
            )
        )

    @contextmanager
    def drawing(self, photos: int) -> Iterator[int]:
        """Draw so many photos next to what this process does meanwhile, if they are worth it.

        Yields:
            How many photos may wait for their pictures.
        """
        if self.drawer is None:
            yield 0
            return
        from concurrent.futures.process import BrokenProcessPool

        from captioner.cli.drawing import PROCESSES_FROM

        if photos >= PROCESSES_FROM and self.arguments.save:
            self.drawer.start()
        try:
            yield self.drawer.ahead
        except BrokenProcessPool:
            raise CaptionerError(
                "a process that drew pictures was killed, as for want of memory; the same command "
                "with --resume does the rest"
            ) from None
        finally:
            self.drawer.stop()

    def begin_to_draw(
        self, photo: Path | str, image: Image.Image, captions: Sequence[tuple[str, Caption]]
    ) -> Callable[[], list[Path]]:
        """Begin to save the pictures of captions; a caption that is withheld is not drawn.

        Args:
            captions: Names of models and their captions: of one, or of those to compare.

        Returns:
            A function that waits for the files and returns them. It reports why some are missing.
        """
        least = self.arguments.min_confidence
        drawn = [each for each in captions if not is_withheld(each[1].confidence, least)]
        if self.drawer is None or not drawn:
            return list
        from captioner.cli.drawing import Drawing

        # The image is sent once, next to the captions.
        bare = [(name, replace(caption, image=None)) for name, caption in drawn]
        title = Path(photo).name
        finish = self.drawer.begin(
            Drawing(self.names[photo], title, image, self._of_head(bare), bare)
        )

        def finished() -> list[Path]:
            pictures, problem = finish()
            if problem is not None:
                self.failed(photo, problem)
            elif "html" in self.arguments.save and self.several:
                first = drawn[0][1]
                self.add_to_gallery(photo, image, first.text, unsure=first.is_unsure)
            return pictures

        return finished

    def draw(
        self, photo: Path | str, image: Image.Image, captions: Sequence[tuple[str, Caption]]
    ) -> list[Path]:
        """Save the pictures of captions, and return their files."""
        return self.begin_to_draw(photo, image, captions)()

    def show(
        self,
        photo: Path | str,
        captions: Sequence[tuple[str, Caption]],
        *,
        others: Sequence[Caption] = (),
        pictures: Sequence[Path] = (),
        files: Sequence[Path] = (),
        scored: bool = False,
    ) -> None:
        """Print captions.

        Args:
            others: Further captions of the same model.
            files: Other files that were written for the photo.
            scored: The caption was given; `others` is the one that the model writes itself.
        """
        arguments = self.arguments
        least = arguments.min_confidence
        if not arguments.json:
            written = [*pictures, *files]
            show(
                text_lines(
                    photo,
                    captions,
                    written,
                    others=others,
                    min_confidence=least,
                    with_total=scored,
                )
            )
            return
        for name, caption in self._of_head(captions):
            show(
                json_line(
                    photo,
                    [caption] if scored else [caption, *others],
                    pictures,
                    min_confidence=least,
                    model=name if arguments.compare else None,
                    as_list=not scored and arguments.num_captions is not None,
                    own=others[0] if scored else None,
                )
            )

    def _of_head(self, captions: Sequence[tuple[str, Caption]]) -> list[tuple[str, Caption]]:
        """Return captions with the maps of the layer and head that the options choose."""
        layer, head = self.arguments.layer, self.arguments.head
        if layer is None and head is None:
            return list(captions)
        return [(name, caption.of_head(layer, head)) for name, caption in captions]

    def add_to_gallery(
        self, photo: Path | str, image: Image.Image, text: str, *, unsure: bool
    ) -> None:
        """List the page of a photo in the gallery."""
        from captioner.visualization import Entry, picture_name

        page = picture_name(self.names[photo], self.content, "html")
        entry = Entry.of(image, name=Path(photo).name, page=page, caption=text, unsure=unsure)
        self.entries[photo] = entry

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
