"""What the REST interface takes and gives."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from captioner.config import HardAttentionMode

MAX_BEAM = 20
LONGEST_TEXT = 1000


class Looking(BaseModel):
    """Options of every request about a photo."""

    model_config = ConfigDict(extra="forbid", strict=False)

    model: str | None = Field(
        None, max_length=200, description="A name from /v1/models; by default the first."
    )
    at_test: HardAttentionMode | None = Field(
        None, description="How hard attention looks; only for models with it."
    )


class CaptionOptions(Looking):
    beam_size: int | None = Field(
        None, ge=1, le=MAX_BEAM, description="Hypotheses kept; 1 is greedy. Default: the model's."
    )
    num_captions: int = Field(
        1, ge=1, le=MAX_BEAM, description="Captions to answer, best first; up to beam_size."
    )
    maps: bool = Field(False, description="Also answer where the model looked for each word.")


class ScoreOptions(Looking):
    caption: str = Field(
        min_length=1, max_length=LONGEST_TEXT, description="The caption that the model reads."
    )
    maps: bool = Field(False, description="Also answer where the model looked for each word.")


class PictureOptions(Looking):
    format: Literal["png", "gif", "html"] = Field("png", description="What to draw.")
    beam_size: int | None = Field(None, ge=1, le=MAX_BEAM, description="As for /v1/captions.")
    caption: str | None = Field(
        None,
        min_length=1,
        max_length=LONGEST_TEXT,
        description="A caption to read, as for /v1/scores; without it the model writes its own.",
    )

    @model_validator(mode="after")
    def _one_way(self) -> PictureOptions:
        if self.caption is not None and self.beam_size is not None:
            raise ValueError("beam_size is for captions that the model writes, so not with caption")
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
    """One caption: for each of its T words how likely it was and where the model looked."""

    model_config = ConfigDict(extra="forbid")

    caption: str
    words: list[str]
    log_probs: list[float] = Field(description="[T], in nats")
    end_log_prob: float | None = Field(description="of the end; null for a caption cut off")
    beta: list[float] | None = Field(description="[T], the gate; null for models without it")
    cells: list[Any] | None = Field(None, description="[T], cells that hard attention looked at")
    paths: list[list[int]] | None = Field(None, description="[M][T], sampled ways of looking")
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
    log_prob: float = Field(description="of the whole caption with its end, in nats")
    unknown_words: list[str] = Field(description="read as unknown words")


class ModelBody(BaseModel):
    name: str
    attention: str = Field(description="soft or hard")
    decoder: str
    beam_size: int = Field(description="where a request gives none")
    max_words: int
    words: int = Field(description="size of the vocabulary")


class ModelsAnswer(BaseModel):
    models: list[ModelBody] = Field(description="The first is the default.")


class StateBody(BaseModel):
    status: str


CAPTION_EXAMPLE: dict[str, Any] = {
    "caption": "two dogs run through the snow",
    "words": ["two", "dogs", "run", "through", "the", "snow"],
    "log_probs": [-0.912413, -0.070112, -0.512001, -0.402211, -0.110514, -0.051322],
    "end_log_prob": -0.310021,
    "beta": [0.412011, 0.518121, 0.488213, 0.401211, 0.351002, 0.442122],
}
CAPTIONS_EXAMPLE = {"model": "soft", "beam_size": 5, "captions": [CAPTION_EXAMPLE]}
SCORE_EXAMPLE = {
    "model": "soft",
    "caption": CAPTION_EXAMPLE,
    "log_prob": -2.368584,
    "unknown_words": [],
}
