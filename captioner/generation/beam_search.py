"""Greedy and beam search for a batch of images at once; every written caption comes from here.

The same code searches with tensors and with NumPy arrays, whichever the decoder computes with:
`arrays.py` says in what they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from array_api_compat import array_namespace

from captioner.config import DecodingConfig
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
from captioner.types import AttentionOutput, Caption, Geometry, Grid

PAD, START, END, UNKNOWN = Vocabulary.pad, Vocabulary.start, Vocabulary.end, Vocabulary.unknown

StopRule: TypeAlias = Literal["first", "bound"]


def unwritable(*, first: bool) -> list[int]:
    """Return the tokens that no caption holds: special ones, and the end as the first word."""
    return [PAD, START, UNKNOWN, END] if first else [PAD, START, UNKNOWN]


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


@dataclass(frozen=True)
class Constraints:
    """Words that captions must or must not hold, as tokens.

    Attributes:
        prefix: The words that every caption begins with.
        forbid: Sequences of one or more words that no caption holds. The prefix may hold them.
        require: Words that every finished caption holds, in any order, at least once each.
    """

    prefix: Sequence[int] = ()
    forbid: Sequence[Sequence[int]] = ()
    require: Sequence[int] = ()


def search_options(decoding: DecodingConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return a model's search settings as `search` takes them, phrases as word indices."""
    phrases = vocabulary.encode_phrases(decoding.no_repeat_around)
    return {**vars(decoding), "no_repeat_around": phrases}


def search(
    decoder: StepDecoder,
    grid: Grid,
    *,
    beam_size: int = 5,
    max_words: int = 30,
    length_penalty: float = 0.0,
    no_repeat_ngram: int = 0,
    no_repeat_around: Sequence[Sequence[int]] = (),
    stop: StopRule = "first",
    constraints: Constraints | None = None,
) -> list[list[Hypothesis]]:
    """Caption every image of the grid.

    Beam search keeps the `beam_size` likeliest unfinished captions of each image. A caption whose
    end token is among the `beam_size` best continuations is finished. Images that are done leave
    the batch, and no image's result depends on the others. Of the special tokens only the end is
    ever written, and never as the first word.

    `stop` chooses when an image is done. With `first` it is done as soon as `beam_size` captions
    have finished, although a longer one could still rank above them, mainly with a length penalty.
    With `bound` it is done when, in addition, no running caption can rank above the best finished
    one. A running caption of total log-probability s after t words ends with a total of
    at most s and a length n of t + 1 to max_words, so that its score is at most
    s / max_words ** p for p > 0 and s / (t + 1) ** p for p <= 0. Of the finished captions the
    `beam_size` best are kept.

    What remains inexact with `bound`: captions whose beginning fell out of the beam are lost, ends
    that are not among the best `beam_size` continuations too, and those behind the first place
    may still have been overtaken.

    Args:
        beam_size: K, unfinished captions kept; 1 is greedy search.
        max_words: Words after which captions are cut off. A finished one has fewer.
        length_penalty: p: captions rank by log P(y) / |y| ** p, |y| counting the end token.
        no_repeat_ngram: n: no sequence of n words comes twice in a caption; 0 allows all.
        no_repeat_around: Phrases of word indices: the word before one does not come right after it.
        stop: `first` or `bound`.
        constraints: Words that captions must or must not hold. Required words share the beam among
            captions with none, one, ... all of them (Post and Vilar, 2018).

    Returns:
        For each image up to `beam_size` hypotheses, best first. If none has finished after
        `max_words` words, the running captions that hold all required words, as they are; no
        hypotheses if no caption fulfils the constraints.

    Raises:
        ValueError: beam_size or max_words below 1, or no_repeat_ngram below 0.
        CheckpointError: The model's output is not a number.
    """
    (found,) = _search_groups(
        decoder,
        grid,
        groups=1,
        beam_size=beam_size,
        max_words=max_words,
        length_penalty=length_penalty,
        no_repeat_ngram=no_repeat_ngram,
        no_repeat_around=no_repeat_around,
        stop=stop,
        constraints=constraints,
    )
    return found


def diverse_search(
    decoder: StepDecoder,
    grid: Grid,
    *,
    groups: int,
    diversity: float,
    **settings: Any,
) -> list[list[Hypothesis]]:
    """Find captions that differ: diverse beam search (Vijayakumar et al., 2018).

    As `search` in `groups` searches of `beam_size` each. At each step a group ranks a word lower by
    `diversity` nats for every time that the groups before it wrote it at this step (Hamming
    diversity). Scores and log-probabilities are the model's own, without that.

    Args:
        settings: Those of `search`.

    Returns:
        For each image the best hypothesis of every group, best first, each caption once.
    """
    found = _search_groups(decoder, grid, groups=groups, diversity=diversity, **settings)
    results = []
    for of_groups in zip(*found, strict=True):
        distinct = {tuple(each[0].tokens): each[0] for each in of_groups if each}
        results.append(sorted(distinct.values(), key=lambda hypothesis: -hypothesis.score))
    return results


def _search_groups(
    decoder: StepDecoder, grid: Grid, *, groups: int, diversity: float = 0.0, **settings: Any
) -> list[list[list[Hypothesis]]]:
    """Search in several groups; return for each group and image its hypotheses, best first."""
    images = len(grid.features)
    if not images:
        return [[] for _ in range(groups)]
    xp, device = array_namespace(grid.features), grid.features.device
    beams = [_Beam(images=images, like=grid.features, **settings) for _ in range(groups)]
    with without_gradients(grid.features):
        prepared = decoder.prepare(grid)
        memories = [prepared] * groups
        states = [decoder.start(prepared) for _ in beams]
        words = [xp.full((images, 1), START, dtype=xp.int64, device=device) for _ in beams]
        while any(beam.is_running for beam in beams):
            written: Array | None = None  # [images, V], how often groups wrote a word at this step
            for index, beam in enumerate(beams):
                if not beam.is_running:
                    continue
                memory, state = memories[index], states[index]
                logits, attended, state = decoder.step(words[index], state, memory)
                if groups > 1 and written is None:
                    shape = (images, logits.shape[-1])
                    written = xp.zeros(shape, dtype=logits.dtype, device=device)
                active = beam.active
                penalty = None if written is None else diversity * written[active]
                tokens, parents, running = beam.advance(logits, attended, penalty)
                if written is not None:
                    for place in range(tokens.shape[1]):
                        written[active, tokens[:, place]] += 1
                if len(running):
                    states[index] = decoder.reorder(state, running, parents[running])
                    if len(running) < len(tokens):
                        memories[index], tokens = memory.select(running), tokens[running]
                    words[index] = tokens
        return [beam.hypotheses() for beam in beams]


class _Beam:
    """The running captions of each image, the finished ones, and the way back to their words.

    Running images are rows (R) of the tensors that `advance` takes; `active` says which images
    they are. The choices of every step are recorded for all images, so that a caption can be read
    back from its last step through its parents.
    """

    def __init__(
        self,
        *,
        images: int,
        like: Array,
        beam_size: int = 1,
        max_words: int = 30,
        length_penalty: float = 0.0,
        no_repeat_ngram: int = 0,
        no_repeat_around: Sequence[Sequence[int]] = (),
        stop: StopRule = "first",
        constraints: Constraints | None = None,
    ) -> None:
        constraints = constraints or Constraints()
        if beam_size < 1 or max_words < 1 or no_repeat_ngram < 0:
            raise ValueError(
                f"beam_size {beam_size} and max_words {max_words} must be at least 1, and "
                f"no_repeat_ngram {no_repeat_ngram} at least 0"
            )
        xp = self.xp = array_namespace(like)
        device = self.device = like.device
        required = sorted(set(constraints.require))
        self.required = xp.asarray(required, dtype=xp.int64, device=device)
        beam_size = max(beam_size, len(self.required) + 1)  # one beam for each number of them
        self.images, self.beam_size, self.max_words = images, beam_size, max_words
        self.length_penalty = length_penalty
        self.no_repeat_ngram = no_repeat_ngram
        self.no_repeat_around = no_repeat_around
        self.stop = stop
        self.constraints = constraints
        self.active = xp.arange(images, device=device)
        float32, int64 = xp.float32, xp.int64
        self.totals = xp.full((images, beam_size), -xp.inf, dtype=float32, device=device)
        self.totals[:, 0] = 0.0  # one beam writes the first word
        self.trace: list[dict[str, Array]] = []
        self.written = xp.zeros((images, beam_size, 0), dtype=int64, device=device)
        # score, log-probability of the end, words before it, beam: one row a finished caption
        self.finished = xp.full((images, beam_size, 4), -xp.inf, dtype=float32, device=device)
        self.count = xp.zeros((images,), dtype=int64, device=device)

    @property
    def is_running(self) -> bool:
        """Whether there are images that are not done."""
        return len(self.active) > 0 and len(self.trace) < self.max_words

    def advance(
        self, logits: Array, attended: AttentionOutput, penalty: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Choose the next words.

        Args:
            logits: [R, K, V], before the first word [R, 1, V].
            attended: Attention of the same rows and beams.
            penalty: [R, V], by which words rank lower; their totals stay as they are.

        Returns:
            The words [R, K], the beams that they continue [R, K], and the rows that go on.
        """
        xp = self.xp
        log_probs = log_softmax(logits)
        rows, given_beams, vocabulary = log_probs.shape
        beams = self.beam_size
        totals = self.totals[..., None] + log_probs  # [R, K, V]
        self._rule_out(totals)
        ranks = totals if penalty is None else totals - penalty[:, None]
        # Each beam has one end token, so among 2K continuations at least K go on.
        if len(self.required):
            index = self._best_by_bank(ranks)
        else:
            index = top_k_indices(xp.reshape(ranks, (rows, -1)), 2 * beams)
        best = xp.take_along_axis(xp.reshape(totals, (rows, -1)), index, axis=1)
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
        if self.stop == "first":
            return unfinished
        words = len(self.trace)
        longest = self.max_words if self.length_penalty > 0 else words + 1
        bound = self.xp.max(totals, axis=-1) / longest**self.length_penalty
        best = self.xp.max(self.finished[self.active, :, 0], axis=-1)
        return unfinished | (bound > best)

    def _rule_out(self, totals: Array) -> None:
        """Set to minus infinity, in [R, K, V], the words that must not come next."""
        xp = self.xp
        place = len(self.trace)
        for token in unwritable(first=place == 0):
            totals[..., token] = -xp.inf
        if place < len(self.constraints.prefix):
            token = self.constraints.prefix[place]
            kept = xp.asarray(totals[..., token], copy=True)
            totals[...] = -xp.inf
            totals[..., token] = kept
            return
        for *context, last in self.constraints.forbid:
            if len(context) <= place:
                ruled_out = self._ends_with(context)
                totals[..., last] = xp.where(ruled_out, -xp.inf, totals[..., last])
        if len(self.required):
            missing = xp.any(~self._has_required(), axis=-1)  # [R, K]
            totals[..., END] = xp.where(missing, -xp.inf, totals[..., END])
        if self.no_repeat_ngram:
            self._rule_out_repeats(totals)
        for phrase in self.no_repeat_around:
            if len(phrase) < place:
                # Other captions rule out <pad>, which is never written.
                before = self.written[..., place - len(phrase) - 1]
                word = xp.where(self._ends_with(phrase), before, PAD)
                row, beam = (xp.arange(count, device=self.device) for count in word.shape)
                totals[row[:, None], beam, word] = -xp.inf

    def _ends_with(self, phrase: Sequence[int]) -> Array:
        """Return bool [R, K], whether each running caption ends with these words."""
        words = self.xp.asarray(list(phrase), dtype=self.xp.int64, device=self.device)
        return self.xp.all(self.written[..., len(self.trace) - len(phrase) :] == words, axis=-1)

    def _rule_out_repeats(self, totals: Array) -> None:
        """Rule out, in [R, K, V], each word that would complete an n-gram a second time."""
        xp = self.xp
        rows, beams, words = self.written.shape
        context = self.no_repeat_ngram - 1
        if words <= context:
            return
        # Each n-gram's context equals the last words (everywhere where n is 1).
        again = xp.ones((rows, beams, words - context), dtype=xp.bool, device=self.device)
        for place in range(context):
            ngram_words = self.written[..., place : words - context + place]
            again &= ngram_words == self.written[..., words - context + place, None]
        # All other n-grams rule out <pad>, which is never written anyway.
        ruled_out = xp.where(again, self.written[..., context:], PAD)
        row, beam = (xp.arange(count, device=self.device) for count in (rows, beams))
        totals[row[:, None, None], beam[:, None], ruled_out] = -xp.inf

    def _has_required(self) -> Array:
        """Return bool [R, K, required words], whether each running caption holds each of them."""
        return self.xp.any(self.written[..., None] == self.required, axis=2)

    def _best_by_bank(self, ranks: Array) -> Array:
        """Return the flat indices [R, 2K] of the best continuations of [R, K, V], by banks.

        A bank is the continuations that hold the same number of required words. All have the same
        share of the beam. First comes each bank's share, that with all words in front, and then as
        many again.
        """
        xp = self.xp
        has = self._has_required()
        number = xp.zeros(ranks.shape, dtype=xp.int64, device=self.device)
        number += xp.sum(has, axis=-1)[..., None]
        number[..., self.required] += xp.astype(~has, xp.int64)
        banks = len(self.required) + 1
        chosen = []
        for bank in range(banks - 1, -1, -1):
            share = self.beam_size // banks + (self.beam_size % banks > bank)
            inside = xp.reshape(xp.where(number == bank, ranks, -xp.inf), (len(ranks), -1))
            best = top_k_indices(inside, 2 * share)
            # Of a bank of fewer, the rest: <pad>, which is ruled out, not another bank's.
            ruled_out = xp.isinf(xp.take_along_axis(inside, best, axis=1))
            best = xp.where(ruled_out, PAD, best)
            chosen.append((best[:, :share], best[:, share:]))
        return xp.concat([part[half] for half in (0, 1) for part in chosen], axis=-1)

    def _finish(self, totals: Array, beam: Array, ends: Array, log_probs: Array) -> None:
        """Record the captions [R, K] that end here: while there is room, or if better (`bound`)."""
        xp = self.xp
        words = len(self.trace)
        ends = ends & xp.isfinite(totals)
        score = xp.where(ends, totals / (words + 1) ** self.length_penalty, -xp.inf)
        end = xp.take_along_axis(log_probs[..., END], beam, axis=1)
        new = xp.stack([score, end, xp.full_like(end, words), xp.astype(beam, end.dtype)], axis=-1)
        both = xp.concat([self.finished[self.active], new], axis=1)
        scores = both[..., 0]
        key = scores if self.stop == "bound" else xp.astype(xp.isfinite(scores), xp.uint8)
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
        totals = self.totals
        if len(self.required):  # a caption that was cut off before it held all of them is none
            totals = self.xp.where(self.xp.all(self._has_required(), axis=-1), totals, -self.xp.inf)
        for image, of_beams in zip(self.active.tolist(), totals.tolist(), strict=True):
            if not results[image]:
                scores = [total / words**self.length_penalty for total in of_beams]
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
