"""Every setting, typed, with the reason for its default. YAML files and dotted options fill it.

A recipe in `configs/` names what differs from these defaults. Unknown keys are errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from captioner.config.training import (
    HardConfig,
    LossConfig,
    OptimConfig,
    SelfCriticalConfig,
    TextConfig,
    TrainConfig,
)


@dataclass(frozen=True)
class DataConfig:
    """Photos and captions.

    Args:
        format: Layout of the data set.
        root: Its folder (for `table` also the file itself).
        file: Karpathy's dataset_*.json or the table, when the folder holds several.
        coco_splits: Folder with coco_{train,val,test,restval}.txt, to use Karpathy's split by
            image names with the `coco` format.
        train_split: Split to train on; `train+restval` joins two.
        val_split: Split to validate on.
        min_count: Words rarer than this in the training captions become `<unk>`.
        max_words: Longer training captions are cut to this many words.
        batch_by: `length` batches captions of equal length (the paper, section 4.3); `photo`
            batches photos with all their captions, so that the encoder runs once a photo.
        batch_size: Captions a batch.
        workers: Processes that read photos.
        flip: Probability of mirroring a training photo.
        min_area: Smallest share of a training photo that a random crop keeps.
        colour: Largest relative change of brightness, contrast and saturation in training.
        cache: Folder for the output of the frozen encoder stages; none computes them each time.
        cache_views: Augmented views a training photo that the cache holds (the first is plain).
        cache_min_area: Cached features are mirrored and cropped anew whenever they are read, and
            this is the smallest share that is kept; 1 takes them as they are.
    """

    format: Literal["flickr8k", "karpathy", "coco", "table"] = "flickr8k"
    root: str = "data/flickr8k"
    file: str | None = None
    coco_splits: str | None = None
    train_split: str = "train"
    val_split: str = "val"
    min_count: int = 5
    max_words: int = 25
    batch_by: Literal["length", "photo"] = "photo"
    batch_size: int = 160
    workers: int = 2
    flip: float = 0.5
    min_area: float = 0.8
    colour: float = 0.2
    cache: str | None = None
    cache_views: int = 1
    cache_min_area: float = 1.0


@dataclass(frozen=True)
class PreprocessConfig:
    """From a photo to the network's input; stored with the model.

    Args:
        height_px: Height of the network's input.
        width_px: Width of the network's input.
        resize: `squash` the whole photo to the input, or `letterbox` it with its aspect ratio.
        interpolation: Filter for resizing; none takes the backbone's own.
        mean: Channel means for values in [0, 1]; none takes the backbone's own.
        std: Channel standard deviations; none takes the backbone's own.
    """

    height_px: int = 256
    width_px: int = 256
    resize: Literal["squash", "letterbox"] = "squash"
    interpolation: Literal["bilinear", "bicubic", "lanczos"] | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class EncoderConfig:
    """Pretrained CNN.

    Args:
        backbone: `efficientnet_lite2`, `vgg19`, `resnet50`, `resnet101`, `resnet152`, or any
            convolutional network of torchvision or timm (`torchvision/NAME`, `timm/NAME`).
        weights: `default`, `none`, the name of a torchvision weights entry, or a file.
        tap: Layer whose output is the grid; none takes the last convolutional one.
        trainable_from: First stage to fine-tune; none freezes the encoder (as the paper does).
        batch_norm: In fine-tuned stages, keep the running statistics (`frozen`, right for small
            batches and for photos that come several times) or update them (`train`).
        project_dim: Size D of the annotation vectors after a learned projection; none uses the
            backbone's own channels, as the paper does.
        dropout: Dropout on the projected annotation vectors, and in self-attention.
        drop_path: Probability of leaving a residual block of the fine-tuned stages out, photo by
            photo (efficientnet_lite2).
        self_attention_layers: Layers in which the cells look at each other before the decoder does.
        self_attention_heads: Their heads.
    """

    backbone: str = "efficientnet_lite2"
    weights: str = "default"
    tap: str | None = None
    trainable_from: str | None = None
    batch_norm: Literal["frozen", "train"] = "frozen"
    project_dim: int | None = None
    dropout: float = 0.0
    drop_path: float = 0.0
    self_attention_layers: int = 0
    self_attention_heads: int = 8


@dataclass(frozen=True)
class AttentionConfig:
    """Where to look: score, then window, then select.

    Args:
        score: How well a cell fits the decoder's state: `additive` is the paper's f_att, `location`
            needs a grid of one size.
        window: Which cells may be looked at: all, Luong's `local_p` (the state predicts a centre)
            or `local_m` (the window goes through the grid in reading order).
        select: `soft` attention takes the expectation (section 4.2), `hard` samples one cell a word
            (section 4.1) and is trained by the settings in `hard`.
        dim: Size A of the space in which states and cells are compared.
        heads: Parts of that space that look for themselves; 1 is the paper's.
        radius: Local windows: cells within so many cells of the centre are looked at.
        words: `local_m`: words after which the window has gone through the grid.
        values: With self-attention in the encoder, what contexts and the decoder's first state are
            made of: `contextual` is the cells after it, `local` those before it; scores always
            compare the cells after it.
        temperature: Scores are divided by this before they become a map.
        semi_sampling: `hard`, in training: probability that a photo takes the expectation instead.
        at_test: `hard`, when captions are written: look at the likeliest cell (`argmax`), at the
            `expectation`, or `sample` as in training.
    """

    score: Literal["additive", "concat", "dot", "scaled_dot", "general", "cosine", "location"] = (
        "additive"
    )
    window: Literal["global", "local_p", "local_m"] = "global"
    select: Literal["soft", "hard"] = "soft"
    dim: int = 512
    heads: int = 1
    radius: float = 3.0
    words: int = 12
    values: Literal["contextual", "local"] = "contextual"
    temperature: float = 1.0
    semi_sampling: float = 0.5
    at_test: Literal["argmax", "expectation", "sample"] = "argmax"


@dataclass(frozen=True)
class DecoderConfig:
    """What writes the caption.

    Args:
        kind: `lstm` is the paper's: it attends before each word; `luong` attends after the
            recurrence; `top_down` has a second LSTM that writes; `mean` is Show and Tell, without
            attention; `transformer`.
        hidden_dim: Size H of the LSTM, or of the Transformer's layers.
        embed_dim: Size E of the word embedding; a Transformer's is H.
        gate: beta of section 4.2.1: one number a word (`scalar`, the paper), one a feature
            (`vector`, as popular reimplementations), or `none`. LSTM decoders that attend.
        output: `lstm`: `deep` is equation 7, with tanh before the last layer as in the original
            code; `plain` is one layer from the LSTM's state.
        tie_embeddings: Use the embedding matrix as last layer too; with `plain` output H must be E.
        dropout: Dropout before the last layer; in a Transformer after each part of a layer too.
        embed_dropout: Dropout on the word embeddings.
        input_feeding: `luong`: the LSTM reads the attentional vector of the word before.
        layers: `transformer`: layers.
        heads: `transformer`: heads of self-attention; `attention.heads` are those that see the
            grid.
        feedforward_dim: `transformer`: size between the two feed-forward matrices.
        positions: `transformer`: how words know their place.
        max_positions: `transformer` with `learned` positions: the longest text it can read.
        pre_norm: `transformer`: normalise before each part of a layer instead of after it.
    """

    kind: Literal["lstm", "luong", "top_down", "mean", "transformer"] = "lstm"
    hidden_dim: int = 512
    embed_dim: int = 512
    gate: Literal["none", "scalar", "vector"] = "scalar"
    output: Literal["deep", "plain"] = "deep"
    tie_embeddings: bool = False
    dropout: float = 0.5
    embed_dropout: float = 0.0
    input_feeding: bool = True
    layers: int = 2
    heads: int = 8
    feedforward_dim: int = 1024
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_positions: int = 64
    pre_norm: bool = True

    @property
    def reads_at_most(self) -> int | None:
        """Words that it can read, the start token among them; None is any number."""
        learned = self.kind == "transformer" and self.positions == "learned"
        return self.max_positions if learned else None


@dataclass(frozen=True)
class DecodingConfig:
    """How captions are searched, unless the command says otherwise; stored with the model.

    Args:
        beam_size: Hypotheses kept; 1 is greedy search.
        max_words: Longest caption.
        length_penalty: A finished caption's log-probability is divided by its length to this
            power; 0 compares plain log-probabilities, as the paper does.
        no_repeat_ngram: No sequence of this many words comes twice in a caption; 0 allows all, as
            the paper does.
    """

    beam_size: int = 5
    max_words: int = 30
    length_penalty: float = 0.0
    no_repeat_ngram: int = 0


@dataclass(frozen=True)
class ModelConfig:
    """What a model folder's config.yaml holds: all that inference needs."""

    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)


@dataclass(frozen=True)
class Config(ModelConfig):
    """A whole training recipe."""

    data: DataConfig = field(default_factory=DataConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    text: TextConfig = field(default_factory=TextConfig)
    hard: HardConfig = field(default_factory=HardConfig)
    self_critical: SelfCriticalConfig = field(default_factory=SelfCriticalConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
