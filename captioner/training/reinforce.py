"""How hard attention learns where to look: the Monte Carlo gradient and its baselines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from captioner.config import Config
from captioner.models.decoders import TeacherForcingOutput, pack_by_step, unpack_by_step

BaselineKind = Literal["none", "moving_average", "leave_one_out", "learned"]


class Baseline(nn.Module, ABC):
    """What is taken from the reward of a look; it must not depend on that look.

    Then the gradient keeps its expectation, and loses noise (Williams, 1992). Rewards and baselines
    are [N, T] for N rows of captions, the samples of a caption one after another, and log p(y | s)
    in nats, summed over `count` words each.
    """

    @abstractmethod
    def forward(self, rewards: Tensor, count: Tensor, queries: Tensor, lengths: Tensor) -> Tensor:
        """Baseline [N, T].

        queries: [M, H], the decoder's state before each look, packed. lengths: [N] on the CPU.
        """

    def update(self, rewards: Tensor, count: Tensor, queries: Tensor, lengths: Tensor) -> None:
        """Learn from a batch, after it was used; nothing where there is nothing to learn."""


class NoBaseline(Baseline):
    def forward(self, rewards: Tensor, count: Tensor, queries: Tensor, lengths: Tensor) -> Tensor:
        return torch.zeros_like(rewards)


class MovingAverage(Baseline):
    """b_k = 0.9 b_{k-1} + 0.1 log p(y | s_k) (section 4.1), a word, times the words rewarded for.

    Captions of a batch need not be of equal length here, so the average is kept a word, as in the
    original code. It is divided by 1 - 0.9^k, without which it would begin at zero.
    """

    average: Tensor
    batches: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros((), dtype=torch.float64))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, rewards: Tensor, count: Tensor, queries: Tensor, lengths: Tensor) -> Tensor:
        mean = self.average / (1 - 0.9 ** self.batches.clamp(min=1).double())
        return count * mean.to(rewards.dtype)

    def update(self, rewards: Tensor, count: Tensor, queries: Tensor, lengths: Tensor) -> None:
        mean = rewards[:, 0].sum() / count[:, 0].sum()  # the first look is paid for all words
        usable = torch.isfinite(mean)  # a step whose loss is not is left out by the loop, too
        moved = 0.9 * self.average + 0.1 * mean
        self.average.copy_(torch.where(usable, moved, self.average))
        self.batches += usable


class LeaveOneOut(Baseline):
    """The mean reward of the other samples of the same caption at the same word.

    Mnih and Rezende, 2016 (VIMCO, section 2.4); Kool et al., 2019. Needs two samples or more.
    """

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples

    def forward(self, rewards: Tensor, count: Tensor, queries: Tensor, lengths: Tensor) -> Tensor:
        by_caption = rewards.unflatten(0, (-1, self.samples))
        others = by_caption.sum(1, keepdim=True) - by_caption
        return (others / (self.samples - 1)).flatten(0, 1)


class LearnedValue(Baseline):
    """A linear value of the state before the look, in nats a word (Mnih and Gregor, 2014)."""

    def __init__(self, hidden_dim: int, *, lr: float = 1e-3) -> None:
        super().__init__()
        self.value = nn.Linear(hidden_dim, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)
        self.optimizer = torch.optim.Adam(self.value.parameters(), lr=lr)

    def forward(self, rewards: Tensor, count: Tensor, queries: Tensor, lengths: Tensor) -> Tensor:
        with torch.no_grad():
            value = self.value(queries.to(rewards.dtype)).squeeze(-1)
            baseline = count * unpack_by_step(value, lengths)
        torch.clear_autocast_cache()  # or `update` would meet weights cast without history
        return baseline

    @torch.enable_grad()
    def update(self, rewards: Tensor, count: Tensor, queries: Tensor, lengths: Tensor) -> None:
        wanted = pack_by_step(rewards, lengths) / pack_by_step(count, lengths)
        error = self.value(queries.to(rewards.dtype)).squeeze(-1) - wanted
        if not error.isfinite().all():  # a step whose loss is not is left out by the loop, too
            return
        self.optimizer.zero_grad(set_to_none=True)
        error.square().mean().backward()
        self.optimizer.step()

    def get_extra_state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


def build_baseline(kind: BaselineKind, *, samples: int, hidden_dim: int) -> Baseline:
    if kind == "moving_average":
        return MovingAverage()
    if kind == "leave_one_out":
        return LeaveOneOut(samples)
    if kind == "learned":
        return LearnedValue(hidden_dim)
    return NoBaseline()


class HardAttentionLoss(nn.Module):
    """The terms of equation 12 beside log p(y | s), which any decoder's loss has.

    A look s_t is rewarded with the log-probability of the words (`credit`: all of the caption, as
    the paper has it, or those from t on, the only ones that s_t can change). The gradient of
    `forward`'s total is

        - sum over words of (lambda_r (R_t - b_t) grad log p(s_t) + lambda_e grad H(alpha_t))

    divided by the number of words, as the rest of the loss is. With lambda_r 1 and lambda_e 0 it
    makes the loss's whole gradient that of the expectation of equation 10 over sampled looks. The
    original code rewards with a tenth of the mean log-probability of a word instead of the sum.
    """

    def __init__(
        self,
        baseline: Baseline,
        *,
        credit: Literal["caption", "future"] = "future",
        reward_scale: float = 1.0,
        entropy: float = 0.002,
    ) -> None:
        super().__init__()
        self.baseline = baseline
        self.credit = credit
        self.reward_scale = reward_scale
        self.entropy = entropy

    def forward(
        self, forced: TeacherForcingOutput, word_log_probs: Tensor, lengths: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What is added to the loss, and its parts for the log.

        word_log_probs: [M], of the target words, packed. lengths: [N], falling.
        """
        rewards, count = self._rewards(word_log_probs.detach(), lengths)
        told = rewards, count, forced.queries, lengths
        advantage = rewards - self.baseline(*told)
        self.baseline.update(*told)
        words = len(word_log_probs)
        reinforce = -(advantage.detach() * forced.log_prob).sum() / words
        entropy = forced.entropy.sum() / words
        sampled = forced.log_prob.detach() != 0
        noise = ((advantage * sampled).square().sum() / sampled.sum().clamp(min=1)).sqrt()
        return self.reward_scale * reinforce - self.entropy * entropy, {
            "reinforce": reinforce.detach(),
            "advantage": noise,
        }

    def _rewards(self, word_log_probs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """R [N, T] and the number of words that each sums; zero where a caption has ended."""
        by_word = unpack_by_step(word_log_probs, lengths)
        running = unpack_by_step(torch.ones_like(word_log_probs), lengths)
        if self.credit == "caption":
            total, count = by_word.sum(1, keepdim=True), running.sum(1, keepdim=True)
            return total * running, count * running

        def from_here_on(values: Tensor) -> Tensor:
            return values.flip(1).cumsum(1).flip(1)

        return from_here_on(by_word), from_here_on(running)


def build_hard_loss(config: Config) -> HardAttentionLoss:
    hard = config.hard
    baseline = build_baseline(
        hard.baseline, samples=hard.samples, hidden_dim=config.decoder.hidden_dim
    )
    return HardAttentionLoss(
        baseline, credit=hard.credit, reward_scale=hard.reward_scale, entropy=hard.entropy
    )
