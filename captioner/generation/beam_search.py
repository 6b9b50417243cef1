"""Greedy and beam search, for a batch of photos at once. The only copies in the house."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from captioner.data.vocabulary import Vocabulary
from captioner.errors import CheckpointError
from captioner.models.decoders.base import Decoder
from captioner.types import AttentionOutput, Caption, Geometry, Grid

PAD, START, END, UNKNOWN = (
    Vocabulary.pad,
    Vocabulary.start,
    Vocabulary.end,
    Vocabulary.unknown,
)


def unwritable(*, first: bool) -> list[int]:
    """Tokens that no caption holds: special ones, and the end as the first word."""
    return [PAD, START, UNKNOWN, END] if first else [PAD, START, UNKNOWN]


@dataclass(frozen=True)
class Hypothesis:
    """One caption as tokens, with where the model looked for each of its T words.

    tokens: word indices, without start and end.
    log_probs: float32 [T]. end_log_prob: None when the caption was cut off at `max_words`.
    maps: float32 [T, L]. beta: float32 [T] or None. cells: int [T] ([T, heads]) or None.
    heads: float32 [T, layers, heads, L], where there are several, or None.
    score: what the search ranks by: total log-probability over length ** length_penalty.
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
        """The same as a Caption, given its words and the shape of the grid."""
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


@torch.inference_mode()
def search(
    decoder: Decoder,
    grid: Grid,
    *,
    beam_size: int = 5,
    max_words: int = 30,
    length_penalty: float = 0.0,
    no_repeat_ngram: int = 0,
    stop: str = "first",
) -> list[list[Hypothesis]]:
    """Caption every photo of the grid: for each, up to `beam_size` hypotheses, best first.

    Beam search keeps the `beam_size` likeliest unfinished captions of each photo. A caption whose
    end token is among the `beam_size` best continuations is finished; a photo is done when
    `beam_size` captions are. Photos that are done leave the batch, and no photo's result depends
    on the others. If nothing has finished after `max_words` words, the running captions are
    returned as they are. `beam_size` 1 is greedy search. Of the special tokens only the end is
    ever written, and never as the first word.

    With `length_penalty` p, captions rank by log p(y) / |y| ** p, |y| counting the end token.
    With `no_repeat_ngram` n above 0, no sequence of n words comes twice in a caption.

    Raises:
        ValueError: beam_size or max_words below 1, or no_repeat_ngram below 0.
        CheckpointError: the model's output is not a number.
    """
    if beam_size < 1 or max_words < 1 or no_repeat_ngram < 0:
        raise ValueError(
            f"beam_size {beam_size} and max_words {max_words} must be at least 1, and "
            f"no_repeat_ngram {no_repeat_ngram} at least 0"
        )
    if not len(grid.features):
        return []
    memory = decoder.prepare(grid)
    beam = _Beam(
        photos=grid.features.shape[0],
        beam_size=beam_size,
        length_penalty=length_penalty,
        no_repeat_ngram=no_repeat_ngram,
        device=grid.features.device,
    )
    state = decoder.start(memory)
    tokens = torch.full((beam.photos, 1), START, device=beam.device)
    for _ in range(max_words):
        logits, attended, state = decoder.step(tokens, state, memory)
        tokens, parents, running = beam.advance(logits, attended)
        if not len(running):
            break
        state = decoder.reorder(state, running, parents[running])
        if len(running) < len(tokens):
            memory, tokens = memory.select(running), tokens[running]
    return beam.hypotheses()


class _Beam:
    """The running captions of each photo, the finished ones, and the way back to their words.

    Running photos are rows (R) of the tensors that `advance` takes; `active` says which photos
    they are. What each step chose is written down for all photos, so that a caption can be read
    back from its last step through its parents.
    """

    def __init__(
        self,
        *,
        photos: int,
        beam_size: int,
        length_penalty: float,
        no_repeat_ngram: int,
        device: torch.device,
    ) -> None:
        self.photos, self.beam_size = photos, beam_size
        self.length_penalty = length_penalty
        self.no_repeat_ngram = no_repeat_ngram
        self.device = device
        self.active = torch.arange(photos, device=device)
        self.totals = torch.full((photos, beam_size), -torch.inf, device=device)
        self.totals[:, 0] = 0.0  # one beam writes the first word
        self.trace: list[dict[str, Tensor]] = []
        self.written = torch.zeros(photos, beam_size, 0, dtype=torch.long, device=device)
        shape = (photos, beam_size + 1)  # the last place is for what has none
        self.finished = {
            "score": torch.full(shape, -torch.inf, device=device),
            "end": torch.zeros(shape, device=device),
            "steps": torch.zeros(shape, dtype=torch.long, device=device),
            "beam": torch.zeros(shape, dtype=torch.long, device=device),
        }
        self.count = torch.zeros(photos, dtype=torch.long, device=device)

    def advance(self, logits: Tensor, attended: AttentionOutput) -> tuple[Tensor, Tensor, Tensor]:
        """Choose the next words from logits [R, K, V], before the first word [R, 1, V].

        Returns the words [R, K], the beams they continue [R, K], and the rows that go on.
        """
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        rows, speaking, vocabulary = log_probs.shape
        beams = self.beam_size
        totals = self.totals.unsqueeze(-1) + log_probs
        for never in unwritable(first=not self.trace):
            totals[..., never] = -torch.inf
        if self.no_repeat_ngram:
            self._forbid_repeats(totals)
        # each beam has one end token, so among 2K continuations at least K go on
        best, index = totals.view(rows, -1).topk(2 * beams, dim=-1)
        damaged = best.isnan().any()  # which topk takes for the largest
        parent, token = (index // vocabulary).clamp(max=speaking - 1), index % vocabulary
        self._finish(best[:, :beams], parent[:, :beams], token[:, :beams] == END, log_probs)

        going_on = (token == END).to(torch.uint8).argsort(dim=-1, stable=True)[:, :beams]
        best, parent, token = (x.gather(1, going_on) for x in (best, parent, token))
        word_log_probs = best - self.totals.gather(1, parent)
        self._remember(
            token=token,
            parent=parent,
            log_prob=word_log_probs,
            map=attended.weights,
            beta=attended.beta,
            cells=attended.cells,
            heads=attended.heads,
        )
        # The one question to the device: it waits there for all that is queued.
        *goes_on, damage = torch.cat([self.count[self.active] < beams, damaged.view(1)]).tolist()
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

    def _forbid_repeats(self, totals: Tensor) -> None:
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

    def _finish(self, totals: Tensor, beam: Tensor, ends: Tensor, log_probs: Tensor) -> None:
        """Take down the captions that end here, while there is room for them."""
        slot = self.count[self.active].unsqueeze(1) + ends.cumsum(-1) - 1
        ends = ends & torch.isfinite(totals) & (slot < self.beam_size)
        place = (self.active.unsqueeze(1), slot.where(ends, self.beam_size))
        words = len(self.trace)
        self.finished["score"][place] = totals / (words + 1) ** self.length_penalty
        self.finished["end"][place] = log_probs[..., END].gather(1, beam)
        self.finished["steps"][place] = words
        self.finished["beam"][place] = beam
        self.count[self.active] += ends.sum(-1)

    def _remember(self, **values: Tensor | None) -> None:
        step = {}
        for name, value in values.items():
            if value is not None:
                step[name] = value.new_zeros((self.photos, self.beam_size, *value.shape[2:]))
                step[name][self.active] = value
        self.trace.append(step)

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The finished captions of each photo, or the running ones where none has finished."""
        trace = {
            name: torch.stack([step[name] for step in self.trace]).cpu().numpy()
            for name in self.trace[0]
        }
        finished = {name: value.cpu().numpy() for name, value in self.finished.items()}
        results: list[list[Hypothesis]] = []
        for photo, count in enumerate(self.count.tolist()):
            found = [
                self._read_back(
                    trace,
                    photo,
                    steps=int(finished["steps"][photo, slot]),
                    beam=int(finished["beam"][photo, slot]),
                    score=float(finished["score"][photo, slot]),
                    end=float(finished["end"][photo, slot]),
                )
                for slot in range(count)
            ]
            results.append(sorted(found, key=lambda hypothesis: -hypothesis.score))
        steps = len(self.trace)
        for photo, totals in zip(self.active.tolist(), self.totals.tolist(), strict=True):
            if not results[photo]:
                results[photo] = [
                    self._read_back(
                        trace,
                        photo,
                        steps=steps,
                        beam=beam,
                        score=total / steps**self.length_penalty,
                        end=None,
                    )
                    for beam, total in enumerate(totals)
                    if np.isfinite(total)
                ]
        return results

    def _read_back(
        self,
        trace: dict[str, np.ndarray],
        photo: int,
        *,
        steps: int,
        beam: int,
        score: float,
        end: float | None,
    ) -> Hypothesis:
        written = np.zeros(steps, dtype=np.int64)  # the beam that holds word t after writing it
        looked = np.zeros(steps, dtype=np.int64)  # the beam that it continued, which looked
        for step in range(steps - 1, -1, -1):
            written[step] = beam
            beam = looked[step] = trace["parent"][step, photo, beam]
        at = np.arange(steps)
        return Hypothesis(
            tokens=trace["token"][at, photo, written].tolist(),
            log_probs=trace["log_prob"][at, photo, written],
            end_log_prob=end,
            maps=trace["map"][at, photo, looked],
            beta=trace["beta"][at, photo, looked] if "beta" in trace else None,
            cells=trace["cells"][at, photo, looked] if "cells" in trace else None,
            heads=trace["heads"][at, photo, looked] if "heads" in trace else None,
            score=score,
        )
