"""Greedy and beam search for a batch of images at once; every written caption comes from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from captioner.data.vocabulary import Vocabulary
from captioner.errors import CheckpointError
from captioner.models.decoders.base import Decoder
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


@torch.inference_mode()
def search(
    decoder: Decoder,
    grid: Grid,
    *,
    beam_size: int = 5,
    max_words: int = 30,
    length_penalty: float = 0.0,
    no_repeat_ngram: int = 0,
    stop: StopRule = "first",
    constraints: Constraints | None = None,
) -> list[list[Hypothesis]]:
    """Caption every image of the grid.

    Beam search keeps the `beam_size` likeliest unfinished captions of each image. A caption whose
    end token is among the `beam_size` best continuations is finished. Images that are done leave
    the batch, and no image's result depends on the others. Of the special tokens only the end is
    ever written, and never as the first word.

    When an image is done is the choice of `stop`. With `first` it is as soon as `beam_size`
    captions have finished, although a longer one could still rank above them, above all with a
    length penalty. With `bound` it is when, besides, no running caption can rank above the best
    finished one. A running caption of total log-probability s after t words ends with a total of
    at most s and a length n of t + 1 to max_words, so that its score is at most
    s / max_words ** p for p > 0 and s / (t + 1) ** p for p <= 0. Of the finished captions the
    `beam_size` best are kept.

    What remains inexact with `bound`: captions whose beginning fell out of the beam are lost, ends
    that are not among the best `beam_size` continuations too, and those behind the first place
    may still have been overtaken.

    Args:
        decoder: In evaluation mode.
        grid: Of B images.
        beam_size: K, unfinished captions kept; 1 is greedy search.
        max_words: Words after which captions are cut off. A finished one has fewer.
        length_penalty: p: captions rank by log P(y) / |y| ** p, |y| counting the end token.
        no_repeat_ngram: n: no sequence of n words comes twice in a caption; 0 allows all.
        stop: `first` or `bound`.
        constraints: Words that captions must or must not hold. Required words share the beam among
            captions with none, one, ... all of them (Post and Vilar, 2018).

    Returns:
        For each image up to `beam_size` hypotheses, best first. If none has finished after
        `max_words` words, the running captions as they are; none where constraints allow none.

    Raises:
        ValueError: beam_size or max_words below 1, or no_repeat_ngram below 0.
        CheckpointError: The model's output is not a number.
    """
    if not len(grid.features):
        return []
    return _run(
        decoder,
        grid,
        [
            _Beam(
                images=len(grid.features),
                beam_size=beam_size,
                max_words=max_words,
                length_penalty=length_penalty,
                no_repeat_ngram=no_repeat_ngram,
                stop=stop,
                constraints=constraints or Constraints(),
                device=grid.features.device,
            )
        ],
    )


@torch.inference_mode()
def diverse_search(
    decoder: Decoder,
    grid: Grid,
    *,
    groups: int,
    diversity: float,
    beam_size: int = 1,
    max_words: int = 30,
    length_penalty: float = 0.0,
    no_repeat_ngram: int = 0,
    stop: StopRule = "first",
    constraints: Constraints | None = None,
) -> list[list[Hypothesis]]:
    """Find captions that differ: diverse beam search (Vijayakumar et al., 2018).

    As `search` in `groups` searches of `beam_size` each. At each step a group ranks a word lower by
    `diversity` nats for every time that the groups before it wrote it at this step (Hamming
    diversity). Scores and log-probabilities are the model's own, without that.

    Returns:
        For each image the best hypothesis of every group, best first, each caption once.
    """
    if not len(grid.features):
        return []
    beams = [
        _Beam(
            images=len(grid.features),
            beam_size=beam_size,
            max_words=max_words,
            length_penalty=length_penalty,
            no_repeat_ngram=no_repeat_ngram,
            stop=stop,
            constraints=constraints or Constraints(),
            device=grid.features.device,
        )
        for _ in range(groups)
    ]
    results = []
    for image in _run(decoder, grid, beams, diversity, best_of_each=True):
        distinct = {tuple(hypothesis.tokens): hypothesis for hypothesis in image}
        results.append(sorted(distinct.values(), key=lambda hypothesis: -hypothesis.score))
    return results


def _run(
    decoder: Decoder,
    grid: Grid,
    beams: list[_Beam],
    diversity: float = 0.0,
    *,
    best_of_each: bool = False,
) -> list[list[Hypothesis]]:
    """Advance the beams step by step; return for each image the hypotheses of all of them."""
    images, device = len(grid.features), grid.features.device
    prepared = decoder.prepare(grid)
    memories = [prepared] * len(beams)
    states = [decoder.start(prepared) for _ in beams]
    words = [torch.full((images, 1), START, device=device) for _ in beams]
    for _ in range(beams[0].max_words):
        written: Tensor | None = None  # [images, V], how often groups wrote a word at this step
        for index, beam in enumerate(beams):
            if not len(beam.active):
                continue
            memory, state = memories[index], states[index]
            logits, attended, state = decoder.step(words[index], state, memory)
            if len(beams) > 1 and written is None:
                written = logits.new_zeros(images, logits.shape[-1])
            active = beam.active
            penalty = None if written is None else diversity * written[active]
            tokens, parents, running = beam.advance(logits, attended, penalty)
            if written is not None:
                ones = torch.ones_like(tokens, dtype=written.dtype)
                written[active] = written[active].scatter_add(1, tokens, ones)
            if len(running):
                states[index] = decoder.reorder(state, running, parents[running])
                if len(running) < len(tokens):
                    memories[index], tokens = memory.select(running), tokens[running]
                words[index] = tokens
        if not any(len(beam.active) for beam in beams):
            break
    found = [beam.hypotheses() for beam in beams]
    return [
        [h for each in found for h in (each[image][:1] if best_of_each else each[image])]
        for image in range(images)
    ]


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
        beam_size: int,
        max_words: int,
        length_penalty: float,
        no_repeat_ngram: int,
        stop: StopRule,
        constraints: Constraints,
        device: torch.device,
    ) -> None:
        if beam_size < 1 or max_words < 1 or no_repeat_ngram < 0:
            raise ValueError(
                f"beam_size {beam_size} and max_words {max_words} must be at least 1, and "
                f"no_repeat_ngram {no_repeat_ngram} at least 0"
            )
        self.required = torch.tensor(sorted(set(constraints.require)), device=device)
        beam_size = max(beam_size, len(self.required) + 1)  # one beam for each number of them
        self.images, self.beam_size, self.max_words = images, beam_size, max_words
        self.length_penalty = length_penalty
        self.no_repeat_ngram = no_repeat_ngram
        self.stop = stop
        self.constraints = constraints
        self.device = device
        self.active = torch.arange(images, device=device)
        self.totals = torch.full((images, beam_size), -torch.inf, device=device)
        self.totals[:, 0] = 0.0  # one beam writes the first word
        self.trace: list[dict[str, Tensor]] = []
        self.written = torch.zeros(images, beam_size, 0, dtype=torch.long, device=device)
        # score, log-probability of the end, words before it, beam: one row a finished caption
        self.finished = torch.full((images, beam_size, 4), -torch.inf, device=device)
        self.count = torch.zeros(images, dtype=torch.long, device=device)

    def advance(
        self, logits: Tensor, attended: AttentionOutput, penalty: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Choose the next words.

        Args:
            logits: [R, K, V], before the first word [R, 1, V].
            attended: Attention of the same rows and beams.
            penalty: [R, V], by which words rank lower; their totals stay as they are.

        Returns:
            The words [R, K], the beams that they continue [R, K], and the rows that go on.
        """
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        rows, speaking, vocabulary = log_probs.shape
        beams = self.beam_size
        totals = self.totals.unsqueeze(-1) + log_probs  # [R, K, V]
        self._rule_out(totals)
        ranks = totals if penalty is None else totals - penalty.unsqueeze(1)
        # Each beam has one end token, so among 2K continuations at least K go on.
        if len(self.required):
            index = self._best_by_bank(ranks)
        else:
            index = ranks.view(rows, -1).topk(2 * beams, dim=-1).indices
        best = totals.view(rows, -1).gather(1, index)
        damaged = best.isnan().any()  # which topk takes for the largest
        parent, token = (index // vocabulary).clamp(max=speaking - 1), index % vocabulary
        self._finish(best[:, :beams], parent[:, :beams], token[:, :beams] == END, log_probs)

        ends, impossible = (token == END).to(torch.uint8), torch.isinf(best).to(torch.uint8)
        going_on = (2 * ends + impossible).argsort(dim=-1, stable=True)[:, :beams]
        best, parent, token = (x.gather(1, going_on) for x in (best, parent, token))
        self._record(
            token=token,
            parent=parent,
            log_prob=log_probs.view(rows, -1).gather(1, parent * vocabulary + token),
            map=attended.weights,
            beta=attended.beta,
            cells=attended.cells,
            heads=attended.heads,
        )
        # The one transfer from the device: it waits there for all that is queued.
        *goes_on, damage = torch.cat([self._goes_on(best), damaged.view(1)]).tolist()
        if damage:
            raise CheckpointError(
                "the model's output is not a number; its weights are damaged or its training went "
                "astray, so use another checkpoint"
            )
        running = torch.tensor(goes_on).nonzero().squeeze(1).to(self.device, non_blocking=True)
        self.totals, self.active = best[running], self.active[running]
        before = self.written.gather(1, parent.unsqueeze(-1).expand(-1, -1, len(self.trace) - 1))
        self.written = torch.cat([before, token.unsqueeze(-1)], dim=-1)[running]
        return token, parent, running

    def _goes_on(self, totals: Tensor) -> Tensor:
        """Return, for running captions of these totals [R, K], which images [R] go on."""
        unfinished = self.count[self.active] < self.beam_size
        if self.stop == "first":
            return unfinished
        words = len(self.trace)
        longest = self.max_words if self.length_penalty > 0 else words + 1
        bound = totals.max(-1).values / longest**self.length_penalty
        best = self.finished[self.active, :, 0].max(-1).values
        return unfinished | (bound > best)

    def _rule_out(self, totals: Tensor) -> None:
        """Set to minus infinity, in [R, K, V], the words that must not come next."""
        place = len(self.trace)
        for token in unwritable(first=place == 0):
            totals[..., token] = -torch.inf
        if place < len(self.constraints.prefix):
            token = self.constraints.prefix[place]
            kept = totals[..., token].clone()
            totals.fill_(-torch.inf)
            totals[..., token] = kept
            return
        for *context, last in self.constraints.forbid:
            if len(context) <= place:
                tail = self.written[..., place - len(context) :]
                ruled_out = (tail == torch.tensor(context, device=self.device)).all(-1)
                totals[..., last].masked_fill_(ruled_out, -torch.inf)
        if len(self.required):
            missing = self._has_required().logical_not().any(-1)  # [R, K]
            totals[..., END].masked_fill_(missing, -torch.inf)
        if self.no_repeat_ngram:
            self._rule_out_repeats(totals)

    def _rule_out_repeats(self, totals: Tensor) -> None:
        """Rule out, in [R, K, V], each word that would complete an n-gram a second time."""
        words = self.written.shape[-1]
        context = self.no_repeat_ngram - 1
        if words <= context:
            return
        ngrams = self.written.unfold(-1, context + 1, 1)  # [R, K, words - n + 1, n]
        last = self.written[..., words - context :].unsqueeze(2)
        again = (ngrams[..., :context] == last).all(-1)  # True everywhere where n is 1
        penalty = torch.zeros_like(again, dtype=totals.dtype).masked_fill(again, -torch.inf)
        totals.scatter_add_(-1, ngrams[..., -1], penalty)

    def _has_required(self) -> Tensor:
        """bool [R, K, required words], those that the running captions hold."""
        return (self.written.unsqueeze(-1) == self.required).any(2)

    def _best_by_bank(self, ranks: Tensor) -> Tensor:
        """Return the flat indices [R, 2K] of the best continuations of [R, K, V], by banks.

        A bank is the continuations that hold the same number of required words. All have the same
        share of the beam. First comes each bank's share, that with all words in front, and then as
        many again.
        """
        has = self._has_required()
        number = has.sum(-1, keepdim=True).expand_as(ranks).clone()  # [R, K, V]
        number[..., self.required] += (~has).long()
        banks = len(self.required) + 1
        chosen = []
        for bank in range(banks - 1, -1, -1):
            share = self.beam_size // banks + (self.beam_size % banks > bank)
            inside = ranks.masked_fill(number != bank, -torch.inf).flatten(1)
            chosen.append(inside.topk(2 * share, dim=-1).indices.split(share, dim=-1))
        return torch.cat([part[half] for half in (0, 1) for part in chosen], dim=-1)

    def _finish(self, totals: Tensor, beam: Tensor, ends: Tensor, log_probs: Tensor) -> None:
        """Record the captions [R, K] that end here: while there is room, or if better (`bound`)."""
        words = len(self.trace)
        ends = ends & torch.isfinite(totals)
        score = (totals / (words + 1) ** self.length_penalty).where(ends, -torch.inf)
        end = log_probs[..., END].gather(1, beam)
        new = torch.stack([score, end, torch.full_like(end, words), beam.to(end)], dim=-1)
        both = torch.cat([self.finished[self.active], new], dim=1)
        key = both[..., 0] if self.stop == "bound" else torch.isfinite(both[..., 0]).to(torch.uint8)
        order = key.argsort(dim=1, descending=True, stable=True)[:, : self.beam_size]
        self.finished[self.active] = both.gather(1, order.unsqueeze(-1).expand(-1, -1, 4))
        self.count[self.active] = (self.count[self.active] + ends.sum(-1)).clamp(max=self.beam_size)

    def _record(self, **values: Tensor | None) -> None:
        step = {}
        for name, value in values.items():
            if value is not None:
                step[name] = value.new_zeros((self.images, self.beam_size, *value.shape[2:]))
                step[name][self.active, : value.shape[1]] = value
        self.trace.append(step)

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the finished captions of each image, or the running ones where none finished."""
        trace = {
            name: torch.stack([step[name] for step in self.trace]).cpu().numpy()
            for name in self.trace[0]
        }
        results: list[list[Hypothesis]] = []
        rows = self.finished.tolist()
        for image, count in enumerate(self.count.tolist()):
            found = [
                self._read_back(trace, image, int(words), int(beam), score, end)
                for score, end, words, beam in rows[image][:count]
            ]
            results.append(sorted(found, key=lambda hypothesis: -hypothesis.score))
        words = len(self.trace)
        for image, totals in zip(self.active.tolist(), self.totals.tolist(), strict=True):
            if not results[image]:
                results[image] = [
                    self._read_back(
                        trace, image, words, beam, total / words**self.length_penalty, None
                    )
                    for beam, total in enumerate(totals)
                    if np.isfinite(total)
                ]
        return results

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
        parent = np.zeros(
            words, dtype=np.int64
        )  # the beam that it continued, whose attention it is
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
