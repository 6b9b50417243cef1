"""Settings of training; those of data, model and search are in `settings`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LossConfig:
    """What training minimises.

    Args:
        doubly_stochastic: lambda of equation 14, for the penalty summed over the cells.
        label_smoothing: Share of the target's probability spread over all words.
        consensus: How far captions that agree with the photo's others weigh more, from 0 (all
            weigh alike) to 1 (by their CIDEr-D; Phan et al., 2017).
        visual_concepts: Weight of also saying from the cells which words a photo's captions hold
            (Fang et al., 2015).
        teachers: Models (folders or a bundled one's name, as [soft]) whose word probabilities are
            learnt beside the captions, their mean where there are several (Hinton et al., 2015).
        distillation: Weight of the teachers' probabilities in the target of a word, from 0 to 1;
            the caption's own word has the rest.
    """

    doubly_stochastic: float = 1.0
    label_smoothing: float = 0.0
    consensus: float = 0.0
    visual_concepts: float = 0.0
    teachers: tuple[str, ...] = ()
    distillation: float = 0.5


@dataclass(frozen=True)
class TextConfig:
    """Captions without photos, from which the decoder learns beside those of the data.

    A caption is written from a grid whose cells are words of other captions of its photo, so at
    least two of each photo are needed. Vocabulary and encoder know nothing of them.

    Args:
        file: Lines of photo id, a tab and a caption, as Flickr30k's; none trains without. Captions
            that the validation photos have too are left out; leave out those of your test photos.
        batch_size: Such captions in a step.
        cells: Words that each is written from.
        weight: Of their cross-entropy.
    """

    file: str | None = None
    batch_size: int = 80
    cells: int = 12
    weight: float = 1.0


@dataclass(frozen=True)
class HardConfig:
    """How hard attention learns where to look (section 4.1, equation 12).

    Args:
        samples: Ways of looking that are sampled for each caption.
        baseline: What is taken from the reward so that its noise does not drown the gradient:
            `moving_average` over batches is the paper's; `leave_one_out` is the mean of the
            caption's other samples; `learned` is a value read from the decoder's state.
        credit: Words whose log-probability rewards a look: all of the `caption`, as in the paper,
            or that word and those after it (`future`), which is the same gradient with less noise.
        reward_scale: lambda_r; 1 is the gradient of equation 11.
        entropy: lambda_e, weight of the maps' entropy, which keeps the model looking around.
    """

    samples: int = 2
    baseline: Literal["none", "moving_average", "leave_one_out", "learned"] = "leave_one_out"
    credit: Literal["caption", "future"] = "future"
    reward_scale: float = 1.0
    entropy: float = 0.002


@dataclass(frozen=True)
class SelfCriticalConfig:
    """Training on the model's own captions, after cross-entropy (Rennie et al., 2017).

    Args:
        samples: Captions drawn for each photo; 0 trains by cross-entropy on those of the data.
        baseline: What a caption's CIDEr-D is compared with: that of the `greedy` caption, as in the
            paper, or the mean of the photo's other samples (`leave_one_out`).
    """

    samples: int = 0
    baseline: Literal["greedy", "leave_one_out"] = "leave_one_out"


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser and its schedule.

    Args:
        name: `adam` (the paper on COCO), `rmsprop` (the paper on Flickr8k) or `adamw`.
        lr: Learning rate of the decoder and the projection.
        encoder_lr: Learning rate of the fine-tuned encoder stages.
        weight_decay: On weight matrices only: not on biases, norms and embeddings.
        schedule: `constant`, `cosine` down to zero at the last epoch, or `plateau`: the rate
            falls tenfold when the validation metric has not risen for `plateau_epochs`.
        plateau_epochs: Epochs to wait on a plateau.
        warmup_steps: Steps over which the rate rises from zero.
        clip_norm: Largest norm of the gradient; 0 does not clip.
        accumulate: Batches whose gradients make one step.
        ema_decay: Decay of the averaged weights that are validated and saved as the model; 0
            uses the last weights.
    """

    name: Literal["adam", "adamw", "rmsprop"] = "adamw"
    lr: float = 5e-4
    encoder_lr: float = 1e-4
    weight_decay: float = 0.01
    schedule: Literal["constant", "cosine", "plateau"] = "cosine"
    plateau_epochs: int = 2
    warmup_steps: int = 200
    clip_norm: float = 5.0
    accumulate: int = 1
    ema_decay: float = 0.0


@dataclass(frozen=True)
class TrainConfig:
    """The run.

    Args:
        output: Run folder.
        start_from: Model to begin with, a bundled one's name or a folder: its vocabulary, and those
            of its weights that have the same name and shape here.
        epochs: Passes over the training captions.
        seed: Fixes initial weights, order, augmentation and dropout.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: `auto` is bfloat16 autocast on a GPU that has it, else float32.
        patience: Stop after this many epochs without a better validation metric; 0 never.
        metric: Validation metric, of captions written freely, that chooses `best`.
        val_beam_size: Beam of that validation.
        val_photos: Validate on the first so many photos; none takes all.
        checkpoint_every: Steps between checkpoints inside an epoch; 0 saves at its end only.
        log_every: Steps between log entries.
        samples: Validation photos whose maps are shown in TensorBoard, and kept in RUN/samples.
    """

    output: str = "runs/captioner"
    start_from: str | None = None
    epochs: int = 20
    seed: int = 1
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    patience: int = 5
    metric: Literal["CIDEr", "Bleu_4", "ROUGE_L"] = "CIDEr"
    val_beam_size: int = 3
    val_photos: int | None = None
    checkpoint_every: int = 200
    log_every: int = 20
    samples: int = 4
