"""Types of settings: numbers in a range and names from the registry, with their wording for users.

They live apart from the settings because jsonargparse takes what it finds under `TYPE_CHECKING` in
the module of a settings class for the types of its fields.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from jsonargparse.typing import restricted_number_type

from captioner.registry import DATA_FORMATS, DECODERS, SCORES, SELECTS, TOKENIZERS, WINDOWS

IN_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


def _number(name: str, kind: type, in_words: str, *restrictions: tuple[str, float]) -> Any:
    """Define a restricted number type, and how its range is worded in refusals."""
    number = restricted_number_type(name, kind, list(restrictions), docstring=in_words)
    IN_WORDS[number] = in_words
    return number


def _count_up_to(name: str, most: int) -> Any:
    return _number(name, int, f"a whole number from 1 to {most}", (">", 0), ("<=", most))


_FINITE = ("<", math.inf)
# Memory grows with these, also where a stranger's model folder sets them.
MAX_BEAM_SIZE = 1000
MAX_WORDS = 10_000  # of a caption
_MAX_INPUT_PX = 4096

if TYPE_CHECKING:
    PositiveInt = int
    NonNegativeInt = int
    InputPixels = int
    BeamSize = int
    CaptionLength = int
    Seed = int
    PositiveFloat = float
    NonNegativeFloat = float
    UnitInterval = float
    BelowOne = float
    AreaShare = float
    Radius = float
    LengthPenalty = float
    DataFormat = str
    TokenizerName = str
    ScoreName = str
    WindowName = str
    SelectName = str
    DecoderName = str
else:
    PositiveInt = _number("PositiveInt", int, "a whole number from 1 up", (">", 0))
    NonNegativeInt = _number("NonNegativeInt", int, "a whole number from 0 up", (">=", 0))
    InputPixels = _count_up_to("InputPixels", _MAX_INPUT_PX)
    BeamSize = _count_up_to("BeamSize", MAX_BEAM_SIZE)
    CaptionLength = _count_up_to("CaptionLength", MAX_WORDS)
    Seed = _number("Seed", int, "a whole number from 0 to 2^63 - 1", (">=", 0), ("<", 2**63))
    PositiveFloat = _number("PositiveNumber", float, "a number above 0", (">", 0), _FINITE)
    NonNegativeFloat = _number("NonNegativeNumber", float, "a number from 0 up", (">=", 0), _FINITE)
    UnitInterval = _number(
        "ClosedUnitInterval", float, "a number from 0 to 1", (">=", 0), ("<=", 1)
    )
    BelowOne = _number("BelowOne", float, "a number from 0 up to below 1", (">=", 0), ("<", 1))
    AreaShare = _number("AreaShare", float, "a number from 0.01 to 1", (">=", 0.01), ("<=", 1))
    # The cell nearest to a window's centre is up to half a cell away and must be inside.
    Radius = _number("Radius", float, "a number of cells from 0.5 up", (">=", 0.5), _FINITE)
    # Beyond 10, lengths to this power leave the range of floats; the field uses 0 to 2.
    LengthPenalty = _number(
        "LengthPenalty", float, "a number from -10 to 10", (">=", -10), ("<=", 10)
    )
    DataFormat = Literal[("auto", *DATA_FORMATS)]
    TokenizerName = Literal[tuple(TOKENIZERS)]
    ScoreName = Literal[tuple(SCORES)]
    WindowName = Literal[tuple(WINDOWS)]
    SelectName = Literal[tuple(SELECTS)]
    DecoderName = Literal[tuple(DECODERS)]
