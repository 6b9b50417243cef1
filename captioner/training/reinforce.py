"""REINFORCE for hard attention: the Monte Carlo gradient of equation 12 and its baselines."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from captioner.config.settings import HardConfig
from captioner.data.batch import Batch, unpack_by_step, word_mask
from captioner.models.decoders.base import TeacherForcingOutput
from captioner.runtime.distributed import mean_over_processes


class MovingAverage(nn.Module):
    """b_k = 0.9 b_{k-1} + 0.1 r_k, the mean reward per word (section 4.1).

    Captions of a batch need not be of equal length here, so the average is kept per word, as in
    the original code. It is divided by 1 - 0.9^k, without which it would begin at zero.
    """

    average: Tensor
    batches: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros((), dtype=torch.float64))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self) -> Tensor:
        """Return the average reward per word, a float64 scalar."""
        return self.average / (1 - 0.9 ** self.batches.clamp(min=1).double())

    def observe(self, reward: Tensor, words: float | Tensor) -> None:
        """Learn from a batch's reward, summed over this process's words; all processes call it."""
        mean = mean_over_processes(reward.to(self.average.device).double()) / words
        is_finite = torch.isfinite(mean)  # the trainer skips a step whose loss is not, too
        updated = 0.9 * self.average + 0.1 * mean
        self.average.copy_(torch.where(is_finite, updated, self.average))
        self.batches += is_finite


class Reinforce(nn.Module):
    """Terms of equation 12 in addition to the loss of the words, which every decoder has.

    A sampled cell s_t is rewarded for the words (`credit`: all of the caption, as in the paper, or
    those from t on, the only ones that s_t can change). The gradient of `forward`'s loss is

        - sum over words of (lambda_r (R_t - b_t) grad log p(s_t) + lambda_e grad H(alpha_t))

    divided by the number of words, as the rest of the loss is. With `reward` minimised, lambda_r 1
    and lambda_e 0, this and the loss of the words together have the gradient of that loss's
    expectation over sampled cells. For plain cross-entropy it is the bound of equation 10.
    The baseline b never depends on the sampled cell: the gradient keeps its expectation and loses
    noise (Williams, 1992).

    Args:
        hard: With `samples` of the attention for each caption (`Batch.repeated`).
    """

    def __init__(self, hard: HardConfig) -> None:
        super().__init__()
        self.hard = hard
        self.baseline = MovingAverage() if hard.baseline == "moving_average" else None

    def forward(
        self, output: TeacherForcingOutput, word_rewards: Tensor, batch: Batch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what is added to the loss, and metrics.

        Args:
            word_rewards: [M], rewards of the single words; `hard.reward` says which.

        Returns:
            The loss, and the metrics `reinforce` and `advantage` (mean square over words; zero for
            a word whose context is the expectation).
        """
        words = batch.words
        rewards, count = self._rewards(word_rewards, batch.lengths)
        advantage = rewards - self._baseline(rewards, count, words)
        reinforce = -(advantage * output.log_prob).sum() / words
        entropy = output.entropy.sum() / words
        loss = self.hard.reward_scale * reinforce - self.hard.entropy * entropy
        spread = (advantage * (output.log_prob.detach() != 0)).square().sum() / words
        return loss, {"reinforce": reinforce.detach(), "advantage": spread}

    def _rewards(self, word_rewards: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return rewards [N, T] in nats and the words that each sums; zero after the end."""
        by_word = unpack_by_step(word_rewards.detach(), lengths)
        running = word_mask(lengths).to(by_word)
        if self.hard.credit == "caption":
            return by_word.sum(1, keepdim=True) * running, running.sum(1, keepdim=True) * running
        return by_word.flip(1).cumsum(1).flip(1), running.flip(1).cumsum(1).flip(1)

    def _baseline(self, rewards: Tensor, count: Tensor, words: float | Tensor) -> Tensor:
        """Return the baseline [N, T] of rewards that each sum `count` [N, T] words."""
        if self.baseline is not None:
            baseline = count * self.baseline().to(rewards.dtype)
            # the first cell is rewarded for all words
            self.baseline.observe(rewards[:, 0].sum(), words)
            return baseline
        if self.hard.baseline == "none":
            return torch.zeros_like(rewards)
        # The mean of the caption's other samples: Mnih and Rezende, 2016 (VIMCO, section 2.4);
        # Kool et al., 2019.
        by_caption = rewards.unflatten(0, (-1, self.hard.samples))
        others = by_caption.sum(1, keepdim=True) - by_caption
        return (others / (self.hard.samples - 1)).flatten(0, 1)
