"""The options and answers of the REST interface."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from captioner.config import HardAttentionMode
from captioner.serving.problems import ProblemBody
from captioner.visualization.style import STYLES, StyleName

MAX_BEAM = 20
MAX_CAPTION_CHARACTERS = 1000
MAX_CAPTION_WORDS, MAX_PICTURE_WORDS = 60, 30  # counted by the model's tokenizer (see service)


PictureFormat = Literal["png", "gif", "html", "svg", "pdf"]
CaptionText = Annotated[str, Field(min_length=1, max_length=MAX_CAPTION_CHARACTERS)]


class ImageOptions(BaseModel):
    """Options of every request with an image."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(
        None, max_length=200, description="A name from /v1/models; by default the first."
    )
    at_test: HardAttentionMode | None = Field(
        None, description="How hard attention selects a cell; only for models with it."
    )


class SearchSettings(ImageOptions):
    beam_size: int | None = Field(
        None, ge=1, le=MAX_BEAM, description="Hypotheses kept; 1 is greedy. Default: the model's."
    )
    min_words: int | None = Field(None, ge=0, lt=MAX_CAPTION_WORDS, description="Shortest caption.")
    max_words: int | None = Field(None, ge=1, le=MAX_CAPTION_WORDS, description="Longest caption.")


class CaptionOptions(SearchSettings):
    num_captions: int = Field(
        1, ge=1, le=MAX_BEAM, description="Captions to answer, best first; up to beam_size."
    )
    sample: bool = Field(False, description="Draw captions at random instead of searching.")
    temperature: float | None = Field(
        None, gt=0, le=100, description="With sample: below 1 likely words become likelier."
    )
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="With sample: only the likeliest words whose probabilities sum to this.",
    )
    seed: int | None = Field(
        None, ge=0, lt=2**32, description="With sample: draw the same captions again."
    )
    maps: bool = Field(False, description="Also answer the attention map of each word.")

    @model_validator(mode="after")
    def _check_sampling(self) -> CaptionOptions:
        for name in ("temperature", "top_p", "seed"):
            if getattr(self, name) is not None and not self.sample:
                raise ValueError(f"{name} needs sample")
        return self


class ScoreOptions(ImageOptions):
    caption: CaptionText = Field(
        description=f"The caption to score, of at most {MAX_CAPTION_WORDS} words.",
        examples=["two dogs run through the snow"],
    )
    maps: bool = Field(False, description="Also answer the attention map of each word.")


class PictureOptions(SearchSettings):
    format: PictureFormat = Field("png", description="What to draw.")
    style: StyleName = Field(STYLES[0], description="How attention is shown.")
    caption: CaptionText | None = Field(
        None,
        description=f"A caption to score and draw, of at most {MAX_PICTURE_WORDS} words; without "
        "it the model writes one.",
    )

    @model_validator(mode="after")
    def _check_exclusive(self) -> PictureOptions:
        for name in ("beam_size", "min_words", "max_words"):
            if self.caption is not None and getattr(self, name) is not None:
                raise ValueError(f"{name} is for captions of the model, so not with caption")
        return self


class GeometryBody(BaseModel):
    photo_width_px: int
    photo_height_px: int
    left_px: float
    top_px: float
    width_px: float
    height_px: float
    flipped: bool


class CaptionBody(BaseModel):
    """One caption, with the log-probability and attention of each of its T words."""

    model_config = ConfigDict(extra="forbid")

    caption: str
    words: list[str]
    log_probs: list[float] = Field(description="[T], in nats")
    end_log_prob: float | None = Field(description="of the end; null for a caption cut off")
    confidence: float | None = Field(
        None,
        ge=0,
        le=1,
        description="estimated probability that the caption is right; null or absent for models "
        "without a calibrator",
    )
    confidence_threshold: float | None = Field(
        None, description="the caption is unsure where its confidence is below this"
    )
    beta: list[float] | None = Field(description="[T], the gate; null for models without it")
    cells: list[Any] | None = Field(None, description="[T], cells that hard attention selected")
    paths: list[list[int]] | None = Field(
        None, description="[M][T], cells of sampled attention paths"
    )
    maps: list[list[list[float]]] | None = Field(
        None, description="[T][rows][columns], each word's map sums to 1"
    )
    heads: list[Any] | None = Field(None, description="[T][layers][heads][rows][columns]")
    geometry: GeometryBody | None = Field(
        None, description="The rectangle of the upright photo that the maps cover, in pixels"
    )


class CaptionsAnswer(BaseModel):
    model: str
    beam_size: int
    captions: list[CaptionBody] = Field(description="best first")


class ScoreAnswer(BaseModel):
    model: str
    caption: CaptionBody
    log_prob: float = Field(description="of the caption with its end token, in nats")
    unknown_words: list[str] = Field(
        description="words outside the vocabulary, scored as the unknown word"
    )


Answer = TypeVar("Answer", CaptionsAnswer, ScoreAnswer)


class FailedPhoto(BaseModel):
    image: str
    error: ProblemBody


class ManyAnswer(BaseModel, Generic[Answer]):
    """The answers for several photos, in their order; those that cannot be used have an error."""

    photos: list[Answer | FailedPhoto]


class ModelBody(BaseModel):
    name: str
    attention: str = Field(description="soft or hard")
    decoder: str
    beam_size: int = Field(description="used where a request gives none")
    max_words: int
    words: int = Field(description="size of the vocabulary")


class ModelsAnswer(BaseModel):
    models: list[ModelBody] = Field(description="The first is the default.")


class StateBody(BaseModel):
    status: str
