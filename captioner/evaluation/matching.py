"""Train the network that says whether a caption matches an image: see `confidence.match`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from captioner.data.vocabulary import Vocabulary
from captioner.generation.confidence import CERTAINTY_SIZE, match
from captioner.log import progress_bar

SIZE = 128  # of words and hidden units
# Captions that a training image is given: of its own beam; of the nearest images; of some of the
# 10 * SIMILAR nearest; of any images.
OWN, NEAREST, SIMILAR, OTHERS = 5, 16, 8, 3
DROPOUT, CELL_DROPOUT = 0.3, 0.2
LEARNING_RATE, WEIGHT_DECAY = 2e-3, 0.05
FIXED = ("mean", "scale")  # of the annotation vectors: the weights that are not learned
EPOCHS, BATCH, AT_ONCE = 10, 48, 16  # images a batch, and captions of each


def offered_captions(means: np.ndarray, beams: Sequence[Sequence[int]]) -> np.ndarray:
    """Choose the captions [N, C], by number, that images are given to judge.

    A model's mistakes look like the captions of similar images.

    Args:
        means: [N, D], mean annotation vector of each image.
        beams: Numbers of the captions found for each image.
    """
    generator = np.random.default_rng(0)
    standard = (means - means.mean(0)) / (means.std(0) + 1e-6)
    standard /= np.linalg.norm(standard, axis=1, keepdims=True)
    rows = []
    for image, own in enumerate(beams):
        likeness = standard @ standard[image]
        likeness[image] = -np.inf
        nearest, similar = np.split(np.argsort(-likeness)[: 10 * SIMILAR], [NEAREST])
        others = [*nearest, *generator.permutation(similar)[:SIMILAR]]
        others += generator.integers(0, len(beams), OTHERS).tolist()
        # Mostly the best of each beam: its confidence is what people ask for.
        chosen = [beams[x][int(generator.random() ** 3 * len(beams[x]))] for x in others]
        different = list(dict.fromkeys([*own, *chosen]))
        rows.append(np.resize(different, OWN + len(chosen)))
    return np.array(rows)


def train_matcher(
    grids: np.ndarray,
    captions: Sequence[Sequence[int]],
    offered: np.ndarray,
    log_probs: np.ndarray,
    scores: np.ndarray,
    *,
    words: int,
    right_from: float,
    device: torch.device | str,
) -> dict[str, np.ndarray]:
    """Return the weights of a network that has learned which captions are right, and their scores.

    Args:
        grids: float16 [N, L, D], annotation vectors of the images.
        captions: Word indices of each caption.
        offered: Numbers [N, C] of the captions that each image is given; some at a time.
        log_probs: [N, C, T], of their words under the captioning model; T words in the longest.
        scores: CIDEr-D [N, C] of these captions for the image.
        words: Size of the vocabulary.
        right_from: CIDEr-D from which a caption is right.
    """

    def dropout(values: Tensor) -> Tensor:
        return F.dropout(values, CELL_DROPOUT if values.ndim == 3 else DROPOUT)

    bar = progress_bar(total=EPOCHS, desc="matcher", unit="epoch")
    with bar, torch.random.fork_rng([device] if torch.cuda.is_initialized() else []):
        torch.manual_seed(0)
        images, choices = torch.from_numpy(grids), torch.from_numpy(offered)
        rows = [torch.tensor(each) for each in captions]
        texts = pad_sequence(rows, batch_first=True, padding_value=Vocabulary.pad).to(device)
        all_log_probs, targets = torch.from_numpy(log_probs), torch.from_numpy(scores).float()
        weights = {name: each.to(device) for name, each in _first_weights(images, words).items()}
        learned = [each.requires_grad_() for name, each in weights.items() if name not in FIXED]
        optimizer = torch.optim.AdamW(learned, LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        steps = len(images) // BATCH
        one_cycle = torch.optim.lr_scheduler.OneCycleLR
        schedule = one_cycle(optimizer, LEARNING_RATE, EPOCHS * steps, pct_start=0.1)
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(images)).split(BATCH)[:steps]:
                some = torch.rand(len(batch), offered.shape[1]).argsort(1)[:, :AT_ONCE]
                given = texts[choices[batch].gather(1, some).to(device)]
                likely = all_log_probs[batch[:, None], some].to(device)
                found = match(weights, images[batch].to(device).float(), given, likely, dropout)
                score = targets[batch].gather(1, some).to(device)
                right = (score >= right_from).float()
                loss = F.binary_cross_entropy_with_logits(found[..., 0], right)
                loss = loss + F.mse_loss(found[..., 1], score)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            bar.update()
    return {name: each.detach().cpu().numpy() for name, each in weights.items()}


def _first_weights(images: Tensor, words: int) -> dict[str, Tensor]:
    sample = images[:1000].float()
    std, dim = sample.std((0, 1)), sample.shape[-1]
    # Channels of almost no variance are left out: where one varies, it would drown the others.
    scale = std.masked_fill(std <= std.mean() / 100, torch.inf)
    weights = {"mean": sample.mean((0, 1)), "scale": scale}
    weights["words"] = torch.randn(words, SIZE)
    inputs = {"key": dim, "value": dim, "image": 2 * dim, "match": SIZE}
    inputs |= {"pair": 3 * SIZE + CERTAINTY_SIZE, "hidden": 3 * SIZE + 2 * CERTAINTY_SIZE}
    for name, size in inputs.items():
        outputs = 2 if name == "match" else SIZE
        weights[name] = torch.empty(size, outputs).uniform_(-1, 1) * size**-0.5
        weights[f"{name}_bias"] = torch.zeros(outputs)
    return weights
