"""Settings of training, and all of a recipe; descriptions are the help texts of the options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from captioner.config.fields import (
    AreaShare,
    BeamSize,
    BelowOne,
    DataFormat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    TokenizerName,
    UnitInterval,
)
from captioner.config.model import ModelConfig


@dataclass(frozen=True)
class SourceConfig:
    """One data set among several that are trained on together (an entry of `data.sources`).

    Args:
        name: Short name, for `--data.root NAME=PATH`, `train.val_source` and the names of its
            validation metrics; if empty, the format, or `source` where that is `auto` (and the
            position, as in `table-2`).
        format: As `data.format`.
        root: As `data.root`.
        file: As `data.file`.
        coco_splits: As `data.coco_splits`.
        image_column: As `data.image_column`.
        caption_column: As `data.caption_column`.
        train_split: Split to train on; null does not train on this source.
        val_split: Split to validate on; null does not validate on this source.
        weight: How many times an epoch shows each image; 0.5 shows another random half each time.
        loss_weight: Factor on the cross-entropy of its captions, not on other terms of the loss.
    """

    name: str = ""
    format: DataFormat = "auto"
    root: str = ""
    file: str | None = None
    coco_splits: str | None = None
    image_column: str | None = None
    caption_column: str | None = None
    train_split: str | None = "train"
    val_split: str | None = "val"
    weight: PositiveFloat = 1.0
    loss_weight: NonNegativeFloat = 1.0


@dataclass(frozen=True)
class DataConfig:
    """Images and captions.

    Args:
        format: Layout of the data set; `auto` recognises it.
        root: Its folder or captions file. Of several sources, on the command line, NAME=PATH for
            one, or more separated by commas; NAME=null leaves one out.
        file: Captions file in that folder, where it holds several.
        coco_splits: Folder with coco_{train,val,test,restval}.txt, to use Karpathy's split by
            image names with the `coco` format.
        image_column: Column of a table with the names of images; null takes the usual names.
        caption_column: Column of a table with captions; null takes the usual names.
        train_split: Split to train on; `train+restval` joins two.
        val_split: Split to validate on.
        val_share: Share of the images held out for validation where there are no splits, by a hash
            of their names; 0 validates on the training images.
        strip_markers: Remove what nearly all captions begin or end with, such as startseq or <end>.
        sources: Several data sets to train on together, each with settings of its own in place of
            `format`, `root`, `file`, `coco_splits`, `train_split` and `val_split` above.
        tokenizer: How captions are split: into `words`; into `characters` for languages written
            without spaces; or into `subwords`, pieces of up to `vocabulary_size` (null: 8000) that
            are learned from the training captions of any language. Saved with the model.
        min_count: Words rarer than this in the training captions become `<unk>`.
        vocabulary_size: Only so many of the most frequent words are kept (the paper: 10000); null
            keeps all that `min_count` keeps.
        max_words: Longer training captions are cut to this many words; null cuts none.
        batch_by: `length` batches captions of equal length (the paper, section 4.3); `photo`
            batches images with all their captions, so that the encoder runs once an image.
        batch_size: Captions a batch.
        workers: Processes that read images; 0 reads them in the training process.
        flip: Probability of mirroring a training image.
        min_area: Smallest share of a training image that a random crop keeps.
        colour: Largest relative change of brightness, contrast and saturation in training.
        view_scale: Size of training images as a share of the model's input. Below 1, objects in
            cropped images appear as large as later in whole ones (Touvron et al., Fixing the
            train-test resolution discrepancy, 2019), and steps are faster.
        cache: Folder for the output of the frozen encoder stages; null computes it each time.
        cache_views: Augmented views a training image that the cache holds (the first is plain).
        cache_min_area: Smallest share of cached features that a random crop keeps, which also
            mirrors them, whenever they are read; 1 takes them as they are.
    """

    format: DataFormat = "auto"
    root: str = "data/flickr8k"
    file: str | None = None
    coco_splits: str | None = None
    image_column: str | None = None
    caption_column: str | None = None
    train_split: str = "train"
    val_split: str = "val"
    val_share: BelowOne = 0.1
    strip_markers: bool = False
    sources: tuple[SourceConfig, ...] | None = None
    tokenizer: TokenizerName = "words"
    min_count: PositiveInt = 5
    vocabulary_size: PositiveInt | None = None
    max_words: PositiveInt | None = 25
    batch_by: Literal["length", "photo"] = "photo"
    batch_size: PositiveInt = 160
    workers: NonNegativeInt = 2
    flip: UnitInterval = 0.5
    min_area: AreaShare = 0.8
    colour: UnitInterval = 0.2
    view_scale: AreaShare = 1.0
    cache: str | None = None
    cache_views: PositiveInt = 1
    cache_min_area: AreaShare = 1.0


@dataclass(frozen=True)
class LossConfig:
    """Terms of the loss.

    Args:
        doubly_stochastic: lambda of equation 14, for the penalty summed over the cells.
        label_smoothing: Share of the target's probability spread over all words.
        teachers: Models (folders or a bundled one's name, as [soft]) whose mean word probabilities
            are learnt in addition to the captions (Hinton et al., 2015).
        distillation: Weight of the teachers' probabilities in the target of a word, from 0 to 1;
            the caption's own word has the rest.
        attention_distillation: Weight of the Kullback-Leibler divergence, a word, of the model's
            attention from the teachers' (Zagoruyko and Komodakis, 2017). Needs `teachers`.
        attention_effect: Nats a word that a caption is to lose when random cells are read in place
            of the attended ones (for soft attention, the mean of all cells); how far each caption
            is from that is added to the loss, so that words depend on where the model attends
            (after Rao et al., 2021). 0 leaves this out, and its second pass of the decoder.
        attention_effect_weight: Weight of that.
    """

    doubly_stochastic: NonNegativeFloat = 1.0
    label_smoothing: BelowOne = 0.0
    teachers: tuple[str, ...] = ()
    distillation: UnitInterval = 0.5
    attention_distillation: NonNegativeFloat = 0.0
    attention_effect: NonNegativeFloat = 0.0
    attention_effect_weight: NonNegativeFloat = 1.0


@dataclass(frozen=True)
class HardConfig:
    """The gradient of hard attention (section 4.1, equation 12).

    Args:
        samples: Sequences of attended cells that are sampled for each caption.
        baseline: Subtracted from the reward to reduce the gradient's variance: `moving_average`
            over batches (the paper), or the mean of the caption's other samples (`leave_one_out`).
        reward: Of a sampled cell: minus the loss of the words as it is `minimised`, with weights,
            label smoothing and teachers, or `log_prob`, the paper's log p(y | s) without these.
        credit: Words that reward a sampled cell: all of the `caption`, as in the paper, or that
            word and those after it (`future`), which is the same gradient with less variance.
        reward_scale: lambda_r, factor on the gradient of the sampled cells; 1 is the exact
            gradient of the expected loss of the words (equation 11). The original code's is about
            N / (10 T) in these terms (0.55 at N 64 captions a batch, T 11.7 words).
        entropy: lambda_e, weight of the entropy of the attention maps. The original code's is about
            0.002 N in these terms (0.13 at N 64).
    """

    samples: PositiveInt = 2
    baseline: Literal["none", "moving_average", "leave_one_out"] = "leave_one_out"
    reward: Literal["minimised", "log_prob"] = "minimised"
    credit: Literal["caption", "future"] = "future"
    reward_scale: NonNegativeFloat = 1.0
    entropy: NonNegativeFloat = 0.002


@dataclass(frozen=True)
class SelfCriticalConfig:
    """Training on the model's own captions, after cross-entropy (Rennie et al., 2017).

    Args:
        samples: Captions sampled for each image; 0 trains by cross-entropy on those of the data.
        baseline: What a caption's CIDEr-D is compared with: that of the `greedy` caption, as in the
            paper, or the mean of the image's other samples (`leave_one_out`).
        temperature: Logits are divided by it, for the samples and in the loss. Use about 0.5 for a
            model trained with label smoothing, whose samples at 1 are mostly rare words.
    """

    samples: NonNegativeInt = 0
    baseline: Literal["greedy", "leave_one_out"] = "leave_one_out"
    temperature: PositiveFloat = 1.0


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer and its schedule.

    Args:
        name: `adam` (the paper on COCO), `adamw`, `rmsprop` (PyTorch's) or `rmsprop_graves` (the
            paper on Flickr8k: centred, eps inside the root; Graves, 2013, equations 38 to 41).
        lr: Learning rate of the decoder and the projection.
        encoder_lr: Learning rate of the fine-tuned encoder stages.
        weight_decay: On weight matrices only: not on biases, norms and embeddings.
        momentum: `rmsprop` and `rmsprop_graves`: momentum (Graves: 0.9).
        alpha: `rmsprop` and `rmsprop_graves`: decay of the running mean of squared gradients
            (Graves: 0.95).
        centered: `rmsprop`: divide by the gradient's standard deviation, as `rmsprop_graves` does.
        eps: Added to the divisor, for `rmsprop_graves` under the root (Graves: 1e-4).
        schedule: `constant`, `cosine` down to zero at the last epoch, or `plateau`: the rate
            falls tenfold when the validation metric has not risen for `plateau_epochs`.
        plateau_epochs: Epochs to wait on a plateau.
        warmup_steps: Steps over which the rate rises from zero.
        clip_norm: Largest norm of the gradient; 0 does not clip.
        accumulate: Batches whose gradients make one step.
        ema_decay: Decay of the averaged weights that are validated and saved as the model; 0
            uses the last weights.
        compress_gradients: With several processes, exchange gradients in bfloat16: half the bytes,
            for slow networks.
    """

    name: Literal["adam", "adamw", "rmsprop", "rmsprop_graves"] = "adamw"
    lr: PositiveFloat = 5e-4
    encoder_lr: PositiveFloat = 1e-4
    weight_decay: NonNegativeFloat = 0.01
    momentum: BelowOne = 0.0
    alpha: BelowOne = 0.99
    centered: bool = False
    eps: PositiveFloat = 1e-8
    schedule: Literal["constant", "cosine", "plateau"] = "cosine"
    plateau_epochs: PositiveInt = 2
    warmup_steps: NonNegativeInt = 200
    clip_norm: NonNegativeFloat = 5.0
    accumulate: PositiveInt = 1
    ema_decay: BelowOne = 0.0
    compress_gradients: bool = False


@dataclass(frozen=True)
class TrainConfig:
    """The training run.

    Args:
        output: Run folder.
        start_from: Model to begin with, a bundled one's name or a folder: its vocabulary and those
            weights that have the same name and shape here (`finetune`: its architecture too).
        start_with: Begin with `all` of that model; its `encoder` alone, for another decoder; or its
            `vocabulary` alone, for an independent model to be combined with it by `loss.teachers`.
        epochs: Passes over the training captions.
        seed: Fixes initial weights, order, augmentation and dropout.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: `auto` is bfloat16 autocast on a GPU that has it, else float32.
        compile: How a step's kernels are started: from CUDA `graphs` that are recorded once, by
            torch.compile (`inductor`), or one by one (`off`). `auto` is `graphs` on a GPU, `off` on
            a CPU. All but `off` pad batches to a few shapes, and search by graphs on a GPU.
        patience: Stop after this many epochs without a better validation metric; 0 never.
        metric: Validation metric, of captions found by beam search, that chooses `best`.
        val_source: Source (a name in `data.sources`) whose metric chooses `best`; null takes the
            mean over all sources that are validated on.
        val_beam_size: Beam of that validation; null is that of `decoding`, as `evaluate` uses.
        val_photos: Validate on the first so many images (of each source); null takes all.
        checkpoint_every: Steps between checkpoints inside an epoch; 0 saves at its end only.
        log_every: Steps between log entries.
        calibrate_from: At the end, the calibrator of `best` (the confidence of its captions) is
            fitted on the validation images where there are at least so many; 0 fits none.
        samples: Validation images whose attention sheets are shown in TensorBoard, epoch by epoch.
    """

    output: str = "runs/captioner"
    start_from: str | None = None
    start_with: Literal["all", "encoder", "vocabulary"] = "all"
    epochs: PositiveInt = 20
    seed: Seed = 1
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: Literal["auto", "graphs", "inductor", "off"] = "auto"
    patience: NonNegativeInt = 5
    metric: Literal["CIDEr", "Bleu_4", "ROUGE_L"] = "CIDEr"
    val_source: str | None = None
    val_beam_size: BeamSize | None = None
    val_photos: PositiveInt | None = None
    checkpoint_every: NonNegativeInt = 200
    log_every: PositiveInt = 20
    calibrate_from: NonNegativeInt = 100
    samples: NonNegativeInt = 4


@dataclass(frozen=True)
class Config(ModelConfig):
    """A training recipe: a model's settings and those of its training."""

    data: DataConfig = field(default_factory=DataConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    hard: HardConfig = field(default_factory=HardConfig)
    self_critical: SelfCriticalConfig = field(default_factory=SelfCriticalConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
