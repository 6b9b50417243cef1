"""Self-critical training: on captions that the model samples itself, rewarded with CIDEr-D."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from captioner.config.settings import Config, SelfCriticalConfig
from captioner.data.batch import Batch, pack_by_step
from captioner.data.sources import SourceImages
from captioner.data.vocabulary import END, Vocabulary
from captioner.evaluation.metrics import CiderD
from captioner.generation import SearchOptions, sample, writable
from captioner.models.decoders.base import TeacherForcingOutput
from captioner.models.model import CaptionModel
from captioner.runtime.device import at_least_float32
from captioner.runtime.distributed import mean_over_processes
from captioner.runtime.draws import draw_words
from captioner.training.cross_entropy import attention_statistics
from captioner.training.task import LossOutput, TrainingTask


class SelfCriticalTask(TrainingTask):
    """Raise the probability of sampled captions that score better than a baseline.

    Rennie et al., 2017. The gradient is that of - sum over captions of (r - b) log p(y), divided by
    the number of words. b is the reward of the model's own greedy caption (section 3.2 of the
    paper), or the mean of the image's other samples (Luo, 2020), which needs no further search. The
    reward counts the end of a caption as a token: without it, captions learn to end in "a" or
    "of a".

    Args:
        reward: CIDEr-D against the training captions, each with its end token.
        max_words: Length of a sampled caption at most.
    """

    def __init__(
        self,
        model: CaptionModel,
        reward: CiderD,
        vocabulary: Vocabulary,
        settings: SelfCriticalConfig,
        *,
        max_words: int,
    ) -> None:
        super().__init__(model)
        self.reward, self.vocabulary, self.max_words = reward, vocabulary, max_words
        self.samples, self.baseline = settings.samples, settings.baseline
        self.temperature = settings.temperature

    @classmethod
    def from_recipe(
        cls, config: Config, model: CaptionModel, vocabulary: Vocabulary, images: SourceImages
    ) -> SelfCriticalTask | None:
        if not config.self_critical.samples:
            return None
        split = vocabulary.tokenizer.split
        references = [[[*split(text), END] for text in image.captions] for image in images.training]
        max_words = config.data.max_words or config.decoding.max_words
        return cls(model, CiderD(references), vocabulary, config.self_critical, max_words=max_words)

    def forward(self, batch: Batch) -> LossOutput:
        """Return the loss of a batch, with metrics of the sampled captions [B, samples, T]."""
        if not len(batch.image_numbers):  # other processes have images
            mean_over_processes(torch.zeros(2, dtype=torch.float64))
            return self.empty_output()
        # Sampling and scoring must use the same network; otherwise the probability of words that
        # one keeps sampling would fall without end in the other. So both use one grid, with the
        # encoder's dropout, and a decoder without dropout.
        grid = self.model.encoder(batch.inputs, from_frozen=batch.from_frozen)
        decoder = self.model.decoder
        was_training = decoder.training
        decoder.eval()
        draw = None if batch.image_seeds is None else partial(draw_words, batch.image_seeds)
        options = SearchOptions(max_words=self.max_words)
        several = replace(options, num_captions=self.samples, temperature=self.temperature)
        tokens, lengths = sample(decoder, grid, several, draw=draw)
        rewards = self._rewards(batch.image_numbers, tokens)  # [B, samples]
        if self.baseline == "greedy":
            greedy, _ = sample(decoder, grid, options, draw=lambda shares, _: shares.argmax(-1))
            baseline = self._rewards(batch.image_numbers, greedy)
        else:
            baseline = (rewards.sum(1, keepdim=True) - rewards) / (self.samples - 1)
        advantage = rewards - baseline
        weighted = advantage
        if batch.weights is not None:  # weights of sources: an image's captions have one weight
            of_image = batch.weights.new_ones(len(rewards))
            weighted = advantage * of_image.scatter(0, batch.image_index, batch.weights)[:, None]
        falling, order = lengths.flatten().cpu().sort(descending=True, stable=True)
        order = order.to(tokens.device)
        weights = weighted.flatten()[order]
        images, targets = order // self.samples, tokens.flatten(0, 1)[order]
        sampled = replace(batch, image_index=images, targets=targets, lengths=falling)
        output: TeacherForcingOutput = self.model(grid, sampled)
        decoder.train(was_training)
        words = pack_by_step(sampled.targets, sampled.lengths)
        logits = at_least_float32(output.logits) / self.temperature
        first, later = logits.tensor_split([len(sampled.lengths)])
        # probabilities over the words that could be sampled
        logits = torch.cat([writable(first, may_end=False), writable(later, may_end=True)])
        log_probs = torch.log_softmax(logits, dim=-1).gather(1, words.unsqueeze(1)).squeeze(1)
        by_word = weights.unsqueeze(1).expand_as(sampled.targets)
        # As `Batch.words`: the mean of the losses of all processes is that of the whole batch.
        counts = torch.tensor([len(words), len(lengths)], dtype=torch.float64)
        num_words, num_images = mean_over_processes(counts).tolist()
        loss = -(pack_by_step(by_word, sampled.lengths) * log_probs).sum() / num_words
        metrics = {
            "total": loss.detach(),
            "reward": rewards.mean(1).sum() / num_images,
            "advantage": advantage.square().mean(1).sum() / num_images,
            "sampled_cross_entropy": -log_probs.detach().sum() / num_words,
            **attention_statistics(output, num_words, num_images * self.samples),
        }
        return LossOutput(loss, metrics)

    def _rewards(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Return CIDEr-D [B, samples] of captions [B, samples, T] of training images [B]."""
        count, samples, _ = tokens.shape
        captions = [
            [self.vocabulary.tokens[index] for index in caption if index != self.vocabulary.pad]
            for caption in tokens.flatten(0, 1).tolist()
        ]
        scores = self.reward.scores(np.repeat(images.tolist(), samples).tolist(), captions)
        rewards = torch.from_numpy(scores).view(count, samples)
        return rewards.to(tokens.device, torch.get_default_dtype())
