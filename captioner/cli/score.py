"""Score a caption that you give: the model's attention for each word, and how likely each is.

The caption that the model writes itself is shown below it.
Exit code: 0 all done, 1 some photos failed, 2 nothing could be done.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from captioner.cli import command, load_captioner, output, parsing, show
from captioner.errors import CaptionerError, ImageError
from captioner.log import logger, printable


@command
def score(parser: parsing.CommandParser) -> int:
    parser.add_argument("photo", type=Path, metavar="PHOTO", help="a photo")
    parser.add_argument("text", metavar="CAPTION", nargs="+", help="its caption")
    parsing.add_model_options(parser, search=False)
    output.add_output_options(parser)
    parser.set_defaults(compare=None, write=())  # as `captioner caption` has them
    arguments = parser.parse()
    arguments.text = " ".join(arguments.text)
    output.check_output_options(parser, arguments)

    from captioner.data.images import open_image

    photo = arguments.photo
    try:
        image = open_image(photo)
    except ImageError as error:
        raise CaptionerError(f"{photo}: {error}") from None
    model = parsing.chosen_model(arguments)
    captioner = load_captioner(model, arguments)
    output.check_attention_options(arguments, [captioner])
    options = output.attention_options(arguments, captioner)
    caption = captioner.score(image, arguments.text, **options)
    own = captioner.caption(image, **options)
    words = captioner.vocabulary.tokenizer.split(arguments.text)
    if unknown := [word for word in words if word not in captioner.vocabulary]:
        logger.info(f"read as unknown words: {', '.join(unknown)}")
    captions = [(str(model), caption)]
    pictures: list[Path] = []
    problem = None
    if arguments.output is not None:
        from captioner.cli.output_folder import save_pictures

        pictures, problem = save_pictures(photo.stem, photo.name, image, captions, arguments)
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
