"""What the captions of a photo agree on: CIDEr-D as a reward, and as weights of captions."""

from __future__ import annotations

import numpy as np

from captioner.data.dataset import CaptionDataset
from captioner.data.vocabulary import END, tokenize
from captioner.evaluation.cider import CiderD


def caption_reward(dataset: CaptionDataset) -> CiderD:
    """With the data set's captions as references, the end of each being a token of it."""
    return CiderD(
        [[[*tokenize(caption), END] for caption in photo.captions] for photo in dataset.photos]
    )


def consensus_weights(dataset: CaptionDataset, share: float) -> np.ndarray:
    """Weights of a data set's captions: more for what a photo's captions agree on, float32.

    (1 - share) + share * r / (the mean r of the photo's captions), where r is a caption's CIDEr-D
    against the photo's others. The weighted cross-entropy of Phan et al. (2017, section 3.2) has r
    itself.
    """
    reward = caption_reward(dataset)
    weights = np.ones(len(dataset), dtype=np.float32)
    by_photo: dict[int, list[int]] = {}
    for caption, photo in enumerate(dataset.photo_of.tolist()):
        by_photo.setdefault(photo, []).append(caption)
    for photo, captions in by_photo.items():
        written = [bool(tokenize(caption)) for caption in dataset.photos[photo].captions]
        agreement = reward.agreement(photo)[written]
        if agreement.mean() > 0:
            weights[captions] = 1 - share + share * agreement / agreement.mean()
    return weights
