"""The settings of a model, to YAML and back; descriptions are the help texts of the options.

Names of sections and keys are a public format: model folders hold them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import yaml

from captioner.config.fields import (
    BeamSize,
    BelowOne,
    CaptionLength,
    DecoderName,
    InputPixels,
    LengthPenalty,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Radius,
    ScoreName,
    SelectName,
    UnitInterval,
    WindowName,
    settings_from,
    warn_of_removed,
)
from captioner.errors import ConfigError, error_summary

HardAttentionMode = Literal["argmax", "expectation", "sample"]
ResizeMode = Literal["squash", "letterbox", "crop"]
Interpolation = Literal["bilinear", "bicubic", "lanczos"]
Sections: TypeAlias = dict[str, dict[str, Any]]  # settings by section and key
NO_YAML = (ValueError, RecursionError, yaml.YAMLError)  # ValueError: a date that does not exist


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
        tap: Layer whose output is the grid; null takes the last one that gives a grid.
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

    score: ScoreName = "additive"
    window: WindowName = "global"
    select: SelectName = "soft"
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

    kind: DecoderName = "lstm"
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


ConfigT = TypeVar("ConfigT", bound=ModelConfig)


def from_yaml(config_class: type[ConfigT], text: str) -> ConfigT:
    """Return settings from YAML; others keep their defaults.

    Raises:
        ConfigError: An unknown key or a value that is not accepted, by its name.
    """
    try:
        document = yaml.safe_load(text)
    except NO_YAML as error:
        raise ConfigError(error_summary(error)) from None
    return from_sections(config_class, {} if document is None else document)


def from_sections(config_class: type[ConfigT], sections: Any) -> ConfigT:
    """Return settings from values by section and key, as YAML has them; others keep defaults."""
    if not isinstance(sections, dict):
        raise ConfigError("the settings are no sections; use lines such as 'optim: {lr: 1e-4}'")
    kinds = {name: type(settings) for name, settings in vars(config_class()).items()}
    for section, values in sections.items():
        if section == "text":  # of earlier versions
            if isinstance(values, dict) and values.get("file"):
                warn_of_removed("text.file")
        elif section not in kinds:
            raise ConfigError(f"{section}: no such section; use one of {', '.join(kinds)}")
    found = {
        name: settings_from(kind, sections.get(name), f"{name}.") for name, kind in kinds.items()
    }
    return config_class(**found)


def to_yaml(config: ModelConfig) -> str:
    """Return all settings as YAML, defaults included."""
    return yaml.safe_dump(asdict(config), sort_keys=False, allow_unicode=True)
