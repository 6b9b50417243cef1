"""The command that scores a caption, and draws the attention to each of its words."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

from captioner.cli import command, load_captioner, output, parsing, show
from captioner.errors import CaptionerError, ImageError
from captioner.log import logger, printable


@command
def score(parser: parsing.CommandParser) -> int:
    """Score a caption that you give: the model's attention for each word, and how likely each is.

    The caption that the model writes itself is shown below it.
    Exit code: 0 all done, 1 some photos failed, 2 nothing could be done.
    """
    parser.add_argument("photo", metavar="PHOTO", help="a photo")
    help_ = "its caption; with or without quotes"
    parser.add_argument("text", metavar="CAPTION", nargs="+", help=help_)
    parsing.add_model_options(parser, search=False)
    output.add_output_options(parser)
    parser.set_defaults(compare=None, write=())  # as `captioner caption` has them
    arguments = parser.parse()
    if len(arguments.text) > 1 and any(" " in text for text in arguments.text):
        parser.error("argument CAPTION: is one caption; score another with a command of its own")
    arguments.text = " ".join(arguments.text)
    output.check_output_options(parser, arguments)

    from captioner.data.images import open_image

    photo = Path(arguments.photo)
    try:
        image = open_image(photo)
    except ImageError as error:
        raise CaptionerError(f"{arguments.photo}: {error}") from None
    model = parsing.chosen_model(arguments)
    captioner = load_captioner(model, arguments)
    (options,) = output.attention_options(arguments, [captioner])
    caption = captioner.score(image, arguments.text, **options)
    own = captioner.caption(image, **options)
    if unknown := [word for word in caption.words if word not in captioner.vocabulary]:
        logger.info(f"read as unknown words: {', '.join(unknown)}")
    drawn = [f"{word} (unknown)" if word in unknown else word for word in caption.words]
    captions = [(str(model), replace(caption, words=drawn))]
    pictures: list[Path] = []
    problem = None
    if arguments.output is not None:
        from captioner.cli.output_folder import OutputFolder, save_pictures

        # The journal keeps pictures of other photos, and lets caption --resume draw its own again.
        folder = OutputFolder(arguments, [photo], settings="score")
        folder.begin()
        name = folder.names[photo]
        pictures, problem = save_pictures(name, photo.name, image, captions, arguments)
        folder.add(photo, {"caption": caption.text, "confidence": caption.confidence}, pictures)
    if problem:
        logger.warning(f"{photo}: {problem}")
    if arguments.json:
        shown = caption.of_head(arguments.layer, arguments.head)
        line = {"image": str(photo), **output.caption_content(shown, with_total=True)}
        line["model_caption"] = output.caption_content(own, with_total=True)
        if pictures:
            line["pictures"] = [str(picture) for picture in pictures]
        show(json.dumps(line))
    else:
        note = partial(output.caption_note, with_total=True)
        show(f"{printable(photo)}: {note(caption)}{output.files_note(pictures)}")
        show(f"  the model's own: {note(own)}")
    return 1 if problem else 0
