"""Greedy and beam search for a batch of images at once; every written caption comes from here.

The same code searches with tensors and with NumPy arrays, whichever the decoder computes with:
`arrays.py` says in what they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from captioner.data.vocabulary import Vocabulary
from captioner.errors import CheckpointError
from captioner.generation.arrays import (
    Array,
    StepDecoder,
    log_softmax,
    to_numpy,
    top_k_indices,
    without_gradients,
)
from captioner.generation.options import SearchOptions
from captioner.types import AttentionOutput, Caption, Geometry, Grid

PAD, START, END, UNKNOWN = Vocabulary.pad, Vocabulary.start, Vocabulary.end, Vocabulary.unknown


def unwritable(*, may_end: bool) -> list[int]:
    """Return the special tokens that cannot come next: all, or all but the end."""
    return [PAD, START, UNKNOWN] if may_end else [PAD, START, UNKNOWN, END]


@dataclass(frozen=True)
class Hypothesis:
    """One caption as tokens, with the attention of each of its T words.

    Attributes:
        tokens: Word indices, without start and end.
        log_probs: float32 [T], in nats.
        end_log_prob: Log-probability of the end token; None when cut off at `max_words`.
        maps: float32 [T, L], attention over the grid cells.
        beta: float32 [T] or None.
        cells: int [T] ([T, heads]) or None.
        score: Rank in the search: total log-probability / length ** length_penalty.
        heads: float32 [T, layers, heads, L], where there are several, or None.
    """

    tokens: list[int]
    log_probs: np.ndarray
    end_log_prob: float | None
    maps: np.ndarray
    beta: np.ndarray | None
    cells: np.ndarray | None
    score: float
    heads: np.ndarray | None = None

    def to_caption(
        self, words: list[str], geometry: Geometry, *, height: int, width: int
    ) -> Caption:
        """Return the same as a Caption, given its words and the shape of the grid."""
        return Caption(
            words=words,
            maps=self.maps.reshape(len(words), height, width).astype(np.float32),
            beta=self.beta,
            log_probs=self.log_probs,
            geometry=geometry,
            end_log_prob=self.end_log_prob,
            cells=self.cells,
            heads=None
            if self.heads is None
            else self.heads.reshape(*self.heads.shape[:3], height, width).astype(np.float32),
        )


def search(
    decoder: StepDecoder, grid: Grid, options: SearchOptions | None = None
) -> list[list[Hypothesis]]:
    """Caption every image of the grid.

    Beam search keeps the `beam_size` likeliest unfinished captions of each image. A caption whose
    end token is among the `beam_size` best continuations is finished. Images that are done leave
    the batch, and no image's result depends on the others. Of the special tokens only the end is
    ever written, and never as the first word.

    `options.stop` chooses when an image is done. With `first` it is done as soon as `beam_size`
    captions have finished, although a longer one could still rank above them. With `bound` it is
    done when, in addition, no running caption can rank above the best finished one. A running
    caption of total log-probability s after t words ends with a total of at most s and a length n
    of t + 1 to max_words. Its score is therefore at most s / max_words ** p for a length penalty
    p > 0, and s / (t + 1) ** p for p <= 0. Of the finished captions the `beam_size` best are kept.

    The search stays inexact with `bound`: it loses captions whose beginning fell out of the beam,
    and ends that are not among the best `beam_size` continuations. Captions behind the first place
    may still have been overtaken.

    Args:
        options: Settings; None takes the defaults of `SearchOptions`.

    Returns:
        For each image up to `beam_size` hypotheses, best first. If none has finished after
        `max_words` words, the running captions as they are.

    Raises:
        CheckpointError: The model's output is not a number.
    """
    images = len(grid.features)
    if not images:
        return []
    xp, device = array_namespace(grid.features), grid.features.device
    beam = _Beam(options or SearchOptions(), images=images, like=grid.features)
    with without_gradients(grid.features):
        memory = decoder.prepare(grid)
        state = decoder.start(memory)
        words = xp.full((images, 1), START, dtype=xp.int64, device=device)
        while beam.is_running:
            logits, attended, state = decoder.step(words, state, memory)
            words, parents, running = beam.advance(logits, attended)
            if len(running):
                state = decoder.reorder(state, running, parents[running])
                if len(running) < len(words):
                    memory, words = memory.select(running), words[running]
        return beam.hypotheses()


class _Beam:
    """The running captions of each image, the finished ones, and the way back to their words.

    Running images are rows (R) of the tensors that `advance` takes; `active` says which images
    they are. The choices of every step are recorded for all images, so that a caption can be read
    back from its last step through its parents.
    """

    def __init__(self, options: SearchOptions, *, images: int, like: Array) -> None:
        xp = self.xp = array_namespace(like)
        device = self.device = like.device
        self.options, self.images, self.beam_size = options, images, options.beam_size
        self.active = xp.arange(images, device=device)
        float32, int64 = xp.float32, xp.int64
        self.totals = xp.full((images, self.beam_size), -xp.inf, dtype=float32, device=device)
        self.totals[:, 0] = 0.0  # one beam writes the first word
        self.trace: list[dict[str, Array]] = []
        self.written = xp.zeros((images, self.beam_size, 0), dtype=int64, device=device)
        # score, log-probability of the end, words before it, beam: one row a finished caption
        self.finished = xp.full((images, self.beam_size, 4), -xp.inf, dtype=float32, device=device)
        self.count = xp.zeros((images,), dtype=int64, device=device)

    @property
    def is_running(self) -> bool:
        """Whether there are images that are not done."""
        return len(self.active) > 0 and len(self.trace) < self.options.max_words

    def advance(self, logits: Array, attended: AttentionOutput) -> tuple[Array, Array, Array]:
        """Choose the next words.

        Args:
            logits: [R, K, V], before the first word [R, 1, V].
            attended: Attention of the same rows and beams.

        Returns:
            The words [R, K], the beams that they continue [R, K], and the rows that go on.
        """
        xp = self.xp
        log_probs = log_softmax(logits)
        rows, given_beams, vocabulary = log_probs.shape
        beams = self.beam_size
        totals = self.totals[..., None] + log_probs  # [R, K, V]
        self._rule_out(totals)
        # Each beam has one end token, so among 2K continuations at least K go on.
        totals = xp.reshape(totals, (rows, -1))
        index = top_k_indices(totals, 2 * beams)
        best = xp.take_along_axis(totals, index, axis=1)
        damaged = xp.any(xp.isnan(best))  # NaN ranks above all numbers
        parent, token = xp.clip(index // vocabulary, max=given_beams - 1), index % vocabulary
        self._finish(best[:, :beams], parent[:, :beams], token[:, :beams] == END, log_probs)

        ends, impossible = xp.astype(token == END, xp.uint8), xp.astype(xp.isinf(best), xp.uint8)
        going_on = xp.argsort(2 * ends + impossible, axis=-1, stable=True)[:, :beams]
        best, parent, token = (
            xp.take_along_axis(x, going_on, axis=1) for x in (best, parent, token)
        )
        flat = xp.reshape(log_probs, (rows, -1))
        self._record(
            token=token,
            parent=parent,
            log_prob=xp.take_along_axis(flat, parent * vocabulary + token, axis=1),
            map=attended.weights,
            beta=attended.beta,
            cells=attended.cells,
            heads=attended.heads,
        )
        # The only copy from the device; it waits until the device has finished its queued work.
        *goes_on, damage = xp.concat([self._goes_on(best), xp.reshape(damaged, (1,))]).tolist()
        if damage:
            raise CheckpointError(
                "the model's output is not a number; its weights are damaged or its training went "
                "astray, so use another checkpoint"
            )
        running = xp.asarray(np.flatnonzero(goes_on), dtype=xp.int64, device=self.device)
        self.totals, self.active = best[running], self.active[running]
        before = self.written[xp.arange(rows, device=self.device)[:, None], parent]
        self.written = xp.concat([before, token[..., None]], axis=-1)[running]
        return token, parent, running

    def _goes_on(self, totals: Array) -> Array:
        """Return, for running captions of these totals [R, K], which images [R] go on."""
        unfinished = self.count[self.active] < self.beam_size
        if self.options.stop == "first":
            return unfinished
        words = len(self.trace)
        longest = self.options.max_words if self.options.length_penalty > 0 else words + 1
        bound = self.xp.max(totals, axis=-1) / longest**self.options.length_penalty
        best = self.xp.max(self.finished[self.active, :, 0], axis=-1)
        return unfinished | (bound > best)

    def _rule_out(self, totals: Array) -> None:
        """Set to minus infinity, in [R, K, V], the words that must not come next."""
        xp, options = self.xp, self.options
        rows, beams, place = self.written.shape
        for token in unwritable(may_end=place >= max(1, options.min_words)):
            totals[..., token] = -xp.inf
        row = xp.arange(rows, device=self.device)[:, None, None]
        beam = xp.arange(beams, device=self.device)[:, None]
        for words, again in self._repeats(place):
            # The other words are ruled out as <pad>, which is never written anyway.
            totals[row, beam, xp.where(again, words, PAD)] = -xp.inf

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
                end = xp.asarray(phrase, dtype=xp.int64, device=self.device)
                ends_so = xp.all(self.written[..., before + 1 :] == end, axis=-1, keepdims=True)
                yield self.written[..., before, None], ends_so
        if options.repeatable is not None and place:
            repeatable = xp.asarray(options.repeatable, dtype=xp.int64, device=self.device)
            yield self.written, ~xp.any(self.written[..., None] == repeatable, axis=-1)

    def _finish(self, totals: Array, beam: Array, ends: Array, log_probs: Array) -> None:
        """Record the captions [R, K] that end here: while there is room, or if better (`bound`)."""
        xp = self.xp
        words = len(self.trace)
        ends = ends & xp.isfinite(totals)
        score = xp.where(ends, totals / (words + 1) ** self.options.length_penalty, -xp.inf)
        end = xp.take_along_axis(log_probs[..., END], beam, axis=1)
        new = xp.stack([score, end, xp.full_like(end, words), xp.astype(beam, end.dtype)], axis=-1)
        both = xp.concat([self.finished[self.active], new], axis=1)
        scores = both[..., 0]
        key = scores if self.options.stop == "bound" else xp.astype(xp.isfinite(scores), xp.uint8)
        order = xp.argsort(key, axis=1, descending=True, stable=True)[:, : self.beam_size]
        row = xp.arange(len(both), device=self.device)[:, None]
        self.finished[self.active] = both[row, order]
        finished = self.count[self.active] + xp.sum(xp.astype(ends, xp.int64), axis=-1)
        self.count[self.active] = xp.clip(finished, max=self.beam_size)

    def _record(self, **values: Array | None) -> None:
        """Append a step to the trace: values [R, ...] in the rows of the active images."""
        step = {}
        for name, value in values.items():
            if value is not None:
                shape = (self.images, self.beam_size, *value.shape[2:])
                step[name] = self.xp.zeros(shape, dtype=value.dtype, device=self.device)
                step[name][self.active, : value.shape[1]] = value
        self.trace.append(step)

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the finished captions of each image, or the running ones where none finished."""
        trace = {
            name: to_numpy(self.xp.stack([step[name] for step in self.trace]))
            for name in self.trace[0]
        }
        results = [
            [
                self._read_back(trace, image, int(words), int(beam), score, end)
                for score, end, words, beam in rows[:count]
            ]
            for image, (count, rows) in enumerate(
                zip(self.count.tolist(), self.finished.tolist(), strict=True)
            )
        ]
        words = len(self.trace)
        for image, of_beams in zip(self.active.tolist(), self.totals.tolist(), strict=True):
            if not results[image]:
                scores = [total / words**self.options.length_penalty for total in of_beams]
                results[image] = [
                    self._read_back(trace, image, words, beam, score, None)
                    for beam, score in enumerate(scores)
                    if np.isfinite(score)
                ]
        return [sorted(found, key=lambda hypothesis: -hypothesis.score) for found in results]

    def _read_back(
        self,
        trace: dict[str, np.ndarray],
        image: int,
        words: int,
        beam: int,
        score: float,
        end: float | None,
    ) -> Hypothesis:
        """Follow a caption from the beam that holds its last word to its first word."""
        written = np.zeros(words, dtype=np.int64)  # the beam that holds word t once written
        parent = np.zeros_like(written)  # the beam that it continued, whose attention it is
        for step in range(words - 1, -1, -1):
            written[step] = beam
            beam = parent[step] = trace["parent"][step, image, beam]
        at = np.arange(words)
        return Hypothesis(
            tokens=trace["token"][at, image, written].tolist(),
            log_probs=trace["log_prob"][at, image, written],
            end_log_prob=end,
            maps=trace["map"][at, image, parent],
            beta=trace["beta"][at, image, parent] if "beta" in trace else None,
            cells=trace["cells"][at, image, parent] if "cells" in trace else None,
            heads=trace["heads"][at, image, parent] if "heads" in trace else None,
            score=score,
        )
