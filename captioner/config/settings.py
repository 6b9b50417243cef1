"""All settings of models and of training; descriptions are the help texts of the options.

Names of sections and keys are a public format: model folders hold them.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from captioner.config.fields import Range
from captioner.registry import DATA_FORMATS, DECODERS, SCORES, SELECTS, TOKENIZERS, WINDOWS

_LARGEST = sys.float_info.max  # what is larger is infinite
PositiveInt: TypeAlias = Annotated[int, Range(1, _LARGEST, "from 1 up")]
NonNegativeInt: TypeAlias = Annotated[int, Range(0, _LARGEST, "from 0 up")]
# Memory grows with these, also where a stranger's model folder sets them.
InputPixels: TypeAlias = Annotated[int, Range(1, 4096, "from 1 to 4096")]
BeamSize: TypeAlias = Annotated[int, Range(1, 1000, "from 1 to 1000")]
CaptionLength: TypeAlias = Annotated[int, Range(1, 10_000, "from 1 to 10000")]
Seed: TypeAlias = Annotated[int, Range(0, 2**63 - 1, "from 0 to 2^63 - 1")]
PositiveFloat: TypeAlias = Annotated[float, Range(math.ulp(0.0), _LARGEST, "above 0")]
NonNegativeFloat: TypeAlias = Annotated[float, Range(0, _LARGEST, "from 0 up")]
UnitInterval: TypeAlias = Annotated[float, Range(0, 1, "from 0 to 1")]
BelowOne: TypeAlias = Annotated[float, Range(0, math.nextafter(1, 0), "from 0 up to below 1")]
AreaShare: TypeAlias = Annotated[float, Range(0.01, 1, "from 0.01 to 1")]
# The cell nearest to a window's centre is up to half a cell away and must be inside.
Radius: TypeAlias = Annotated[float, Range(0.5, _LARGEST, "of cells from 0.5 up")]
# Beyond 10, lengths to this power leave the range of floats; the field uses 0 to 2.
LengthPenalty: TypeAlias = Annotated[float, Range(-10, 10, "from -10 to 10")]
# mypy takes only literals that are written out.
DataFormat: TypeAlias = Literal[("auto", *DATA_FORMATS)]  # type: ignore[valid-type]
HardAttentionMode = Literal["argmax", "expectation", "sample"]
ResizeMode = Literal["squash", "letterbox", "crop"]
Interpolation = Literal["bilinear", "bicubic", "lanczos"]


@dataclass(frozen=True)
class PreprocessConfig:
    """From an image to the network's input; stored with the model.

    Args:
        height_px: Height of the network's input.
        width_px: Width of the network's input.
        resize: `squash` the image to the input, `letterbox` it with its aspect ratio, or `crop`:
            resize the shorter side and keep the centre (the paper).
        interpolation: Filter for resizing; null takes the backbone's own.
        mean: Channel means for values in [0, 1]; null takes the backbone's own.
        std: Channel standard deviations; null takes the backbone's own.
    """

    height_px: InputPixels = 256
    width_px: InputPixels = 256
    resize: ResizeMode = "squash"
    interpolation: Interpolation | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None = None


@dataclass(frozen=True)
class EncoderConfig:
    """Pretrained network that turns an image into a grid of annotation vectors.

    Args:
        backbone: `efficientnet_lite2`, `vgg19`, `resnet50`, `resnet101`, `resnet152`, or any
            convolutional network of torchvision or timm (`torchvision/NAME`, `timm/NAME`), or a
            ViT, CLIP or Swin tower of timm.
        weights: `default`, `none`, the name of a torchvision weights entry, or a file; of a timm
            network also `default@REVISION`, a commit of its weights on the Hugging Face Hub.
        tap: Layer whose output is the grid (of timm's networks the number of a feature map, as
            "3"); null takes the last one that gives a grid.
        trainable_from: First stage to fine-tune; null freezes the encoder (as the paper does).
        batch_norm: In fine-tuned stages, keep the running statistics (`frozen`, right for small
            batches and for images that come several times) or update them (`train`).
        project_dim: Size D of the annotation vectors after a learned projection; null uses the
            backbone's own channels, as the paper does.
        dropout: Dropout on the projected annotation vectors, and in self-attention.
        drop_path: Probability of skipping a residual block of the fine-tuned stages, drawn for
            each image (efficientnet_lite2).
        self_attention_layers: Layers of self-attention between the cells of the grid.
        self_attention_heads: Heads of each of these layers.
    """

    backbone: str = "efficientnet_lite2"
    weights: str = "default"
    tap: str | None = None
    trainable_from: str | None = None
    batch_norm: Literal["frozen", "train"] = "frozen"
    project_dim: PositiveInt | None = None
    dropout: BelowOne = 0.0
    drop_path: BelowOne = 0.0
    self_attention_layers: NonNegativeInt = 0
    self_attention_heads: PositiveInt = 8


@dataclass(frozen=True)
class AttentionConfig:
    """Attention over the grid: score, then window, then select.

    Args:
        score: How well a cell matches the decoder's state: `additive` is the paper's f_att
            (equation 4), `location` needs a grid of one size.
        window: Cells that may be attended to: all (`global`), Luong's `local_p` (the state
            predicts a centre) or `local_m` (the window moves over the grid in reading order).
        select: `soft` attention takes the expectation (section 4.2), `hard` samples one cell a
            word (section 4.1) and is trained by the settings in `hard`.
        dim: Size A of the space in which states and cells are compared.
        heads: Attention heads, each with its share of that space; 1 is the paper's.
        radius: Local windows: largest distance from the centre, in cells.
        words: `local_m`: number of words in which the window moves over the entire grid.
        values: Contexts are made of the cells after the encoder's self-attention (`contextual`) or
            of those before it (`local`); scores always compare the cells after it.
        key_smoothing: Weight of the cells on each side, from 0 to 1, in the average of 3 x 3 cells
            that scores compare: 0 compares each cell alone, as in the paper; 0.5 is the binomial
            filter (1 2 1). Hard attention then rests on objects instead of single cells.
        temperature: Scores are divided by this before the softmax.
        semi_sampling: `hard`, in training: probability of taking the expectation instead of a
            sample, drawn for each image as in section 4.1 (the original code: for each batch).
        at_test: `hard`, when captions are written: attend to the likeliest cell (`argmax`), take
            the `expectation`, or `sample` as in training.
    """

    score: Literal[tuple(SCORES)] = "additive"  # type: ignore[valid-type]
    window: Literal[tuple(WINDOWS)] = "global"  # type: ignore[valid-type]
    select: Literal[tuple(SELECTS)] = "soft"  # type: ignore[valid-type]
    dim: PositiveInt = 512
    heads: PositiveInt = 1
    radius: Radius = 3.0
    words: PositiveInt = 12
    values: Literal["contextual", "local"] = "contextual"
    key_smoothing: UnitInterval = 0.0
    temperature: PositiveFloat = 1.0
    semi_sampling: UnitInterval = 0.5
    at_test: HardAttentionMode = "argmax"


@dataclass(frozen=True)
class DecoderConfig:
    """The network that predicts the caption's words.

    Args:
        kind: `lstm` is the paper's, which attends before each word; `luong` attends after the
            LSTM's step; `top_down` has one LSTM that attends and one that predicts; `mean` is
            Show and Tell, without attention; `transformer`.
        hidden_dim: Size H of the LSTM, or of the Transformer's layers.
        embed_dim: Size E of the word embedding; a Transformer's is H.
        gate: LSTM decoders: beta of section 4.2.1, one number a word (`scalar`, the paper), one a
            feature (`vector`, as popular reimplementations), or `none`.
        output: `lstm`: `deep` is equation 7, with tanh before the last layer as in the original
            code; `plain` is one layer from the LSTM's state.
        tie_embeddings: Use the embedding matrix as last layer too; with `plain` output H must be E.
        dropout: Dropout before the last layer; in a Transformer after each part of a layer too.
        embed_dropout: Dropout on the word embeddings.
        input_feeding: `luong`: the previous word's attentional vector is an input of the LSTM.
        layers: `transformer`: number of layers.
        heads: `transformer`: heads of self-attention between words; `attention.heads` is the
            number for the grid.
        feedforward_dim: `transformer`: inner size of the feed-forward networks.
        positions: `transformer`: position embeddings.
        max_positions: `transformer` with `learned` positions: the longest text it can read.
        pre_norm: `transformer`: normalise before each part of a layer instead of after it.
    """

    kind: Literal[tuple(DECODERS)] = "lstm"  # type: ignore[valid-type]
    hidden_dim: PositiveInt = 512
    embed_dim: PositiveInt = 512
    gate: Literal["none", "scalar", "vector"] = "scalar"
    output: Literal["deep", "plain"] = "deep"
    tie_embeddings: bool = False
    dropout: BelowOne = 0.5
    embed_dropout: BelowOne = 0.0
    input_feeding: bool = True
    layers: PositiveInt = 2
    heads: PositiveInt = 8
    feedforward_dim: PositiveInt = 1024
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_positions: PositiveInt = 64
    pre_norm: bool = True

    @property
    def reads_at_most(self) -> int | None:
        """Longest text, in words with the start token, that it can read; None if any length."""
        learned = self.kind == "transformer" and self.positions == "learned"
        return self.max_positions if learned else None


@dataclass(frozen=True)
class DecodingConfig:
    """Beam search, unless the command has options of its own; stored with the model.

    Args:
        beam_size: Hypotheses kept; 1 is greedy search.
        max_words: Longest caption.
        min_words: Shortest caption.
        length_penalty: A finished caption's log-probability is divided by its length to this
            power; 0 is the paper's. null is 0.8, until the end of training writes the one with the
            best validation metric into the model.
        no_repeat_ngram: No sequence of this many words comes twice in a caption; 0 allows all.
        no_repeat_around: Phrases, such as [and, and a]: the word before one of them does not come
            again right after it ("hat and hat").
        no_double_words: No word comes twice in a row, nor again right after `a`, `an` or `the`
            ("a baby a baby"). For the tokenizer `words` only.
        no_repeat_content: No word comes twice in a caption ("a bedroom with a bed in the bedroom"),
            except English function words, numbers, colours and persons. For English captions and
            the tokenizer `words` only.
        stop: The search ends as soon as `beam_size` captions are finished (`first`), or when in
            addition no other can still get a better score, by an upper bound on it (`bound`).
    """

    beam_size: BeamSize = 5
    max_words: CaptionLength = 30
    min_words: NonNegativeInt = 0
    length_penalty: LengthPenalty | None = None
    no_repeat_ngram: NonNegativeInt = 0
    no_repeat_around: tuple[str, ...] = ()
    no_double_words: bool = False
    no_repeat_content: bool = False
    stop: Literal["first", "bound"] = "first"


@dataclass(frozen=True)
class ModelConfig:
    """The config.yaml of a model folder: all that inference needs."""

    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)


@dataclass(frozen=True)
class SourceConfig:
    """One data set among several that are trained on together (an entry of `data.sources`).

    Args:
        name: Short name, for `--data.root NAME=PATH`, `train.val_source` and the names of its
            validation metrics; if empty, the format, or `source` where that is `auto` (and the
            position, as in `table-2`).
        format, root, file, coco_splits, image_column, caption_column: As in `data`.
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
        workers: Processes that read images; 0 reads them in the training process. null: for a GPU
            one less than its share of the cores (16 at most), for a CPU one.
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
    tokenizer: Literal[tuple(TOKENIZERS)] = "words"  # type: ignore[valid-type]
    min_count: PositiveInt = 5
    vocabulary_size: PositiveInt | None = None
    max_words: PositiveInt | None = 25
    batch_by: Literal["length", "photo"] = "photo"
    batch_size: PositiveInt = 160
    workers: NonNegativeInt | None = None
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
        accumulate: Batches that make one step, as one large batch would.
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
        log_every: Steps between log entries; the last step of an epoch has one, too.
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
