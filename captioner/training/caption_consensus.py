"""Agreement of an image's captions: CIDEr-D as a reward, and as weights of captions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from captioner.data.captioned import CaptionedImage
from captioner.data.vocabulary import END, tokenize
from captioner.evaluation.cider import CiderD


def caption_reward(images: Sequence[CaptionedImage]) -> CiderD:
    """Return CIDEr-D against the images' captions, the end of each being a token of it."""
    return CiderD([[[*tokenize(caption), END] for caption in image.captions] for image in images])


def consensus_weights(images: Sequence[CaptionedImage], share: float) -> np.ndarray:
    """Return weights of captions that favour what an image's captions agree on.

    A caption weighs (1 - share) + share * r / (the mean r of the image's captions), where r is its
    CIDEr-D against the image's others; 1 where there are none. The weighted cross-entropy of Phan
    et al. (2017, section 3.2) has r itself.

    Args:
        images: Training images.
        share: From 0, all captions weigh alike, to 1.

    Returns:
        float32, one for each caption that has words, in the order of the images and captions.
    """
    reward = caption_reward(images)
    weights = []
    for index, image in enumerate(images):
        has_words = np.array([bool(tokenize(caption)) for caption in image.captions], dtype=bool)
        agreement = reward.agreement(index)[has_words]
        relative = np.ones(len(agreement))
        if len(agreement) and agreement.mean() > 0:
            relative = 1 - share + share * agreement / agreement.mean()
        weights.append(relative)
    return np.concatenate(weights).astype(np.float32)
