"""Settings of the search and of sampling: one object, made once from a model's and a user's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from captioner.config import DecodingConfig, HardAttentionMode, validate_section
from captioner.config.settings import (
    BeamSize,
    CaptionLength,
    LengthPenalty,
    NonNegativeInt,
    PositiveFloat,
    Seed,
    UnitInterval,
)
from captioner.data.vocabulary import Vocabulary
from captioner.errors import ConfigError

# A word does not come again right after these either: "a baby a baby".
ARTICLES = ("a", "an", "the")
# Words that people do repeat in a caption: "a man in a red shirt and a man in a blue shirt".
REPEATED = (
    *"a an the some this that these those it its his her their one two three four other".split(),
    *"another each both and or but while as so very of in on at with to from for by into".split(),
    *"onto over under up down out off near next behind front along around through across".split(),
    *"above against between is are was be being has have there top side".split(),
    *"man men woman women boy boys girl girls child children kid person people baby guy".split(),
    *"dog dogs player players team black white red blue green yellow brown orange pink".split(),
    *"purple gray grey dark light large small big little young old".split(),
)


@dataclass(frozen=True)
class SearchOptions:
    """How captions are written; what is not named here is as in `DecodingConfig`.

    Attributes:
        no_repeat_around: Phrases of word indices: the word before one does not come again right
            after it. The empty phrase keeps a word from coming twice in a row.
        repeatable: The only words that may come twice in a caption, as indices; None: all may.
        at_test: How hard attention chooses its cell; None is the model's way.
        paths: With hard attention, also sample this many sequences of cells for the same words.
        num_captions: Captions of each image, best first; a search finds up to `beam_size`.
        sample: Draw captions from the model's distribution, word by word, instead of searching.
            They come as drawn: some may be the same, and rules on repeated words do not apply.
        temperature: When sampling, logits are divided by it; below 1 likely words become likelier.
        top_p: When sampling, draw only from the fewest likeliest words whose probabilities sum to
            this.
        seed: Seed of all that is sampled, to draw the same again; None does not fix it.
    """

    beam_size: BeamSize = 5
    max_words: CaptionLength = 30
    min_words: NonNegativeInt = 0
    length_penalty: LengthPenalty = 0.0
    no_repeat_ngram: NonNegativeInt = 0
    no_repeat_around: tuple[tuple[int, ...], ...] = ()
    repeatable: tuple[int, ...] | None = None
    stop: Literal["first", "bound"] = "first"
    at_test: HardAttentionMode | None = None
    paths: NonNegativeInt = 0
    num_captions: BeamSize = 1
    sample: bool = False
    temperature: PositiveFloat = 1.0
    top_p: UnitInterval | None = None
    seed: Seed | None = None

    def __post_init__(self) -> None:
        validate_section(self)
        if self.min_words >= self.max_words:
            raise ConfigError(
                f"min_words: {self.min_words} is not below max_words {self.max_words}; use fewer, "
                "or more max_words"
            )
        if self.top_p == 0:
            raise ConfigError("top_p: 0 leaves no words to draw from; use a number above 0")

    @classmethod
    def from_config(
        cls, decoding: DecodingConfig, vocabulary: Vocabulary, **given: Any
    ) -> SearchOptions:
        """Return a model's settings, replaced by those that are given and not None."""
        has_words = vocabulary.tokenizer.name == "words"
        phrases = vocabulary.encode_phrases(decoding.no_repeat_around)
        if decoding.no_double_words and has_words:
            phrases += [[], *vocabulary.encode_phrases(ARTICLES)]
        repeatable = None
        if decoding.no_repeat_content and has_words:
            repeatable = tuple(index for (index,) in vocabulary.encode_phrases(REPEATED))
        same = ("beam_size", "max_words", "min_words", "no_repeat_ngram", "stop")
        settings: dict[str, Any] = {name: getattr(decoding, name) for name in same}
        settings |= {
            "length_penalty": 0.8 if decoding.length_penalty is None else decoding.length_penalty,
            "no_repeat_around": tuple(map(tuple, phrases)),
            "repeatable": repeatable,
        }
        return cls(**settings | {name: x for name, x in given.items() if x is not None})
