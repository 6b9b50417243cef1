"""Greedy and beam search for a batch of images at once, with tensors or NumPy arrays; its options.

Images that are done leave the batch. On a GPU all shapes stay: see `fixed_shapes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from array_api_compat import array_namespace

from captioner.config import DecodingConfig, HardAttentionMode, settings, validate_section
from captioner.data.vocabulary import Vocabulary
from captioner.errors import CheckpointError, ConfigError
from captioner.generation.arrays import (
    Array,
    gather,
    log_softmax,
    to_numpy,
    top_k_indices,
    without_gradients,
)
from captioner.types import Grid

if TYPE_CHECKING:
    from captioner.models.decoders.base import StepDecoder
    from captioner.runtime.cuda_graphs import GraphCache

CHECK_EVERY = 4  # words between two questions to a GPU whether all captions have ended
# Fields of a hypothesis: those of an AttentionOutput that they come from.
ATTENDED = {"maps": "weights", "beta": "beta", "cells": "cells", "heads": "heads"}
PAD, START, END, UNKNOWN = Vocabulary.pad, Vocabulary.start, Vocabulary.end, Vocabulary.unknown
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
        top_p: When sampling, draw from the fewest likeliest words whose probabilities sum to it.
        seed: Seed of all that is sampled, to draw the same again; None does not fix it.
    """

    beam_size: settings.BeamSize = 5
    max_words: settings.CaptionLength = 30
    min_words: settings.NonNegativeInt = 0
    length_penalty: settings.LengthPenalty = 0.0
    no_repeat_ngram: settings.NonNegativeInt = 0
    no_repeat_around: tuple[tuple[int, ...], ...] = ()
    repeatable: tuple[int, ...] | None = None
    stop: Literal["first", "bound"] = "first"
    at_test: HardAttentionMode | None = None
    paths: settings.NonNegativeInt = 0
    num_captions: settings.BeamSize = 1
    sample: bool = False
    temperature: settings.PositiveFloat = 1.0
    top_p: settings.UnitInterval | None = None
    seed: settings.Seed | None = None

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
        chosen: dict[str, Any] = {name: getattr(decoding, name) for name in same}
        chosen |= {
            "length_penalty": 0.8 if decoding.length_penalty is None else decoding.length_penalty,
            "no_repeat_around": tuple(map(tuple, phrases)),
            "repeatable": repeatable,
        }
        return cls(**chosen | {name: x for name, x in given.items() if x is not None})


def unwritable(*, may_end: bool) -> list[int]:
    """Return the special tokens that cannot come next."""
    return [PAD, START, UNKNOWN] if may_end else [PAD, START, UNKNOWN, END]


@dataclass(frozen=True)
class Hypothesis:
    """One caption as tokens, with the attention of each of its T words."""

    tokens: list[int]  # word indices, without start and end
    log_probs: np.ndarray  # float32 [T], in nats
    end_log_prob: float | None  # of the end token; None when cut off at `max_words`
    maps: np.ndarray  # float32 [T, L], attention over the grid cells
    beta: np.ndarray | None  # float32 [T]
    cells: np.ndarray | None  # int [T] ([T, heads])
    score: float  # rank in the search: total log-probability / length ** length_penalty
    heads: np.ndarray | None = None  # float32 [T, layers, heads, L], where there are several


def search(
    decoder: StepDecoder, grid: Grid, options: SearchOptions, graphs: GraphCache | None = None
) -> list[list[Hypothesis]]:
    """Caption every image of the grid; no image's result depends on the others.

    Beam search keeps the `beam_size` likeliest unfinished captions of each image. A caption whose
    end token is among the `beam_size` best continuations is finished. Of the special tokens only
    the end is ever written, and never as the first word.

    With `options.stop` `first`, an image is done as soon as `beam_size` captions have finished,
    although a longer one could still rank above them. With `bound`, in addition, no running caption
    can rank above the best finished one, and the `beam_size` best are kept. A caption of total
    log-probability s after t words ends with a score of at most s / max_words ** p for a length
    penalty p > 0, and s / (t + 1) ** p for p <= 0.

    Args:
        graphs: Search in fixed shapes, as a GPU needs it. None: images that are done leave.

    Returns:
        For each image up to `num_captions` hypotheses (of `beam_size` at most), best first. If none
        has finished after `max_words` words, the running captions as they are.
    """
    with without_gradients(grid.features):
        if graphs is not None:
            from captioner.generation.fixed_shapes import search_in_fixed_shapes

            with graphs.lock:
                return search_in_fixed_shapes(decoder, grid, options, graphs)
        beam = Beam(decoder, grid, options, repeatable_words(grid, options))
        running = True
        while running and len(beam.trace) < options.max_words:
            beam.write_word()
            running = beam.leave()
        return beam.hypotheses(options.num_captions)


def repeatable_words(grid: Grid, options: SearchOptions) -> Array | None:
    """Return the words that may come twice, on the device; None: all may."""
    if options.repeatable is None:
        return None
    xp = array_namespace(grid.features)
    return xp.asarray(options.repeatable, dtype=xp.int64, device=grid.features.device)


class Beam:
    """The running captions of each image, the finished ones, and the way back to their words.

    Running images are rows (R) of the tensors; `active` says which of the B images they are.
    """

    def __init__(
        self, decoder: StepDecoder, grid: Grid, options: SearchOptions, repeatable: Array | None
    ) -> None:
        xp = self.xp = array_namespace(grid.features)
        device = self.device = grid.features.device
        self.decoder, self.options, self.repeatable = decoder, options, repeatable
        images, beams = len(grid.features), options.beam_size
        self.memory = decoder.prepare(grid)
        self.state = decoder.start(self.memory)
        self.rows = self.kept = xp.arange(images, device=device)
        self.active: Array | slice = slice(None)
        self.running = xp.ones((images,), dtype=xp.bool, device=device)
        self.damaged = ~self.running
        self.words = xp.full((images, 1), START, dtype=xp.int64, device=device)
        self.parents = self.words  # beams that the words continue, of rows `kept`
        self.written = xp.zeros((images, 1, 0), dtype=xp.int64, device=device)  # [R, K, T]
        self.totals = xp.full((images, beams), -xp.inf, dtype=xp.float32, device=device)
        self.totals[:, 0] = 0.0  # one beam writes the first word
        self.trace: list[dict[str, Array]] = []
        # score, log-probability of the end, words before it, beam: one row a finished caption
        self.finished = xp.full((images, beams, 4), -xp.inf, dtype=xp.float32, device=device)
        # On the device: a number of Python's would be copied there at each use.
        self.impossible = xp.full((), -xp.inf, dtype=xp.float32, device=device)

    def write_word(self) -> None:
        """Choose the next words [R, K] of all rows, and the beams that they continue."""
        xp, beams = self.xp, self.options.beam_size
        if self.trace:
            self.state = self.decoder.reorder(self.state, self.kept, self.parents)
        logits, attended, self.state = self.decoder.step(self.words, self.state, self.memory)
        log_probs = log_softmax(logits)  # [R, K, V], before the first word [R, 1, V]
        rows, _, vocabulary = log_probs.shape
        totals = self.totals[..., None] + log_probs  # [R, K, V]
        self._rule_out(totals)
        # Each beam has one end token, so among 2K continuations at least K go on.
        totals = xp.reshape(totals, (rows, -1))
        index = top_k_indices(totals, 2 * beams)
        best = gather(totals, index)
        # NaN ranks above all numbers
        self.damaged = self.damaged | (xp.isnan(best[:, 0]) & self.running)
        parent, token = index // vocabulary, index % vocabulary
        if not self.trace:  # the other beams are not there yet
            parent = xp.zeros_like(parent)
        ended = token == END
        self._finish(best[:, :beams], parent[:, :beams], ended[:, :beams], log_probs)

        ends, impossible = xp.astype(ended, xp.uint8), xp.astype(xp.isinf(best), xp.uint8)
        going_on = xp.argsort(2 * ends + impossible, axis=-1, stable=True)[:, :beams]
        self.totals, self.parents, self.words = (gather(x, going_on) for x in (best, parent, token))
        flat = xp.reshape(log_probs, (rows, -1))
        step = {
            "tokens": self.words,
            "parents": self.parents,
            "log_probs": gather(flat, self.parents * vocabulary + self.words),
            **{name: getattr(attended, attribute) for name, attribute in ATTENDED.items()},
        }
        self.trace.append({k: self._of_all(v) for k, v in step.items() if v is not None})
        before = self.written[self.rows[:rows, None], self.parents]
        self.written = xp.concat([before, self.words[..., None]], axis=-1)
        self.running = self.running & self._goes_on()

    def leave(self) -> bool:
        """Drop the images that are done; return whether others go on."""
        xp = self.xp
        running = self.read_running()
        rows = self.kept = xp.asarray(np.flatnonzero(running), dtype=xp.int64, device=self.device)
        if 0 < len(rows) < len(running):
            self.memory = self.memory.select(rows)
            for name in ("words", "parents", "written", "totals", "running", "damaged"):
                setattr(self, name, getattr(self, name)[rows])
            self.active = self.rows[self.active][rows]
        return any(running)

    def read_running(self) -> list[bool]:
        """Return which rows go on; the only copy from the device, for whose work it waits."""
        rows = len(self.running)
        values = self.xp.concat([self.running, self.damaged]).tolist()
        if any(values[rows:]):
            raise CheckpointError(
                "the model's output is not a number; its weights are damaged or its training went "
                "astray, so use another checkpoint"
            )
        return values[:rows]

    def _goes_on(self) -> Array:
        """Return which images [R] are not done."""
        finished = self.finished[self.active, :, 0]  # the best first, or the first
        unfinished = self.xp.isinf(finished[:, -1])
        if self.options.stop == "first":
            return unfinished
        longest = self.options.max_words if self.options.length_penalty > 0 else len(self.trace) + 1
        bound = self.xp.max(self.totals, axis=-1) / longest**self.options.length_penalty
        return unfinished | (bound > finished[:, 0])

    def _rule_out(self, totals: Array) -> None:
        """Set to minus infinity, in [R, K, V], the words that must not come next."""
        xp, options = self.xp, self.options
        place = len(self.trace)
        for token in unwritable(may_end=place >= max(1, options.min_words)):
            totals[..., token] = -xp.inf
        row = self.rows[: len(totals), None, None]
        beam = xp.arange(totals.shape[1], device=self.device)[:, None]
        for words, again in self._repeats(place):
            # The other words are ruled out as <pad>, which is never written anyway.
            totals[row, beam, xp.where(again, words, PAD)] = self.impossible

    def _repeats(self, place: int) -> Iterator[tuple[Array, Array]]:
        """Yield words [R, K, n] of the running captions, and which of them must not come again."""
        xp, options = self.xp, self.options
        context = options.no_repeat_ngram - 1
        if 0 <= context < place:
            # The words behind each n-gram's context, where that equals the caption's last words.
            again = xp.ones_like(self.written[..., context:], dtype=xp.bool)
            for index in range(context):
                ngram_words = self.written[..., index : place - context + index]
                again &= ngram_words == self.written[..., place - context + index, None]
            yield self.written[..., context:], again
        for phrase in options.no_repeat_around:
            before = place - len(phrase) - 1
            if before >= 0:
                word = self.written[..., before, None]
                ends_so = xp.ones_like(word, dtype=xp.bool)
                for offset, token in enumerate(phrase, start=before + 1):
                    ends_so &= self.written[..., offset, None] == token
                yield word, ends_so
        if self.repeatable is not None and place:
            yield self.written, ~xp.any(self.written[..., None] == self.repeatable, axis=-1)

    def _finish(self, totals: Array, beam: Array, ends: Array, log_probs: Array) -> None:
        """Record the captions [R, K] that end here: while there is room, or if better (`bound`)."""
        xp = self.xp
        words = len(self.trace)
        ends = ends & xp.isfinite(totals) & self.running[:, None]
        score = xp.where(ends, totals / (words + 1) ** self.options.length_penalty, -xp.inf)
        end = gather(log_probs[..., END], beam)
        new = xp.stack([score, end, xp.full_like(end, words), xp.astype(beam, end.dtype)], axis=-1)
        both = xp.concat([self.finished[self.active], new], axis=1)
        scores = both[..., 0]
        key = scores if self.options.stop == "bound" else xp.astype(xp.isfinite(scores), xp.uint8)
        order = xp.argsort(key, axis=1, descending=True, stable=True)[:, : self.options.beam_size]
        self.finished[self.active] = both[self.rows[: len(both), None], order]

    def _of_all(self, value: Array) -> Array:
        """Return values [R, K or 1, ...] of the active images as values [B, K, ...] of all."""
        shape = (self.options.beam_size, *value.shape[2:])
        if len(value) == len(self.rows):
            return self.xp.broadcast_to(value, (len(value), *shape))
        values = self.xp.zeros((len(self.rows), *shape), dtype=value.dtype, device=self.device)
        values[self.active] = value
        return values

    def hypotheses(self, count: int) -> list[list[Hypothesis]]:
        """Return the best finished captions of each image, the running ones where none finished."""
        xp = self.xp
        # [T, B, K, ...]
        trace = {name: xp.stack([step[name] for step in self.trace]) for name in self.trace[0]}
        parents = to_numpy(trace.pop("parents"))
        finished = to_numpy(self.finished).astype(np.float64)
        totals = to_numpy(self.totals).astype(np.float64)
        totals /= len(self.trace) ** self.options.length_penalty
        for image, scores in zip(to_numpy(self.rows[self.active]), totals, strict=True):
            if np.isinf(finished[image, 0, 0]):  # cut off
                for beam, score in enumerate(scores):
                    finished[image, beam] = score, np.nan, len(self.trace), beam

        images = np.arange(len(finished))[:, None]
        order = np.argsort(-finished[..., 0], kind="stable")
        finished = finished[images, order[:, :count]]  # [B, count, 4], the best first
        numbers = np.nan_to_num(finished[..., 2:], neginf=0).astype(np.int64)
        lengths, beams = numbers.transpose(2, 0, 1)
        paths = [beams]  # [B, count] each, from the last word back to before the first
        for step in reversed(range(len(parents))):
            paths.append(np.where(step < lengths, parents[step][images, paths[-1]], paths[-1]))
        path = xp.asarray(np.stack(paths[::-1]), device=self.device)  # [T + 1, B, count]
        steps = xp.arange(len(parents), device=self.device)[:, None, None]
        own = {}  # [T, B, count, ...]; a GPU copies only these to main memory
        for name, values in trace.items():
            # Each word was written from the attention of the beam that it continues.
            beam = path[:-1] if name in ATTENDED else path[1:]
            own[name] = to_numpy(values[steps, self.rows[:, None], beam])

        def hypothesis(image: int, caption: int) -> Hypothesis:
            score, end, words, _ = finished[image, caption].tolist()
            parts: dict[str, Any] = {
                name: values[: int(words), image, caption].copy() for name, values in own.items()
            }
            return Hypothesis(
                **{"beta": None, "cells": None, **parts, "tokens": parts["tokens"].tolist()},
                end_log_prob=None if np.isnan(end) else end,
                score=score,
            )

        return [
            [hypothesis(image, caption) for caption in np.flatnonzero(np.isfinite(scores)).tolist()]
            for image, scores in enumerate(finished[..., 0])
        ]
