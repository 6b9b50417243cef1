"""Backbones from timm: any convolutional network by its name, as one stage."""

from __future__ import annotations

import os
from typing import Any

from captioner.errors import ConfigError, WeightsError
from captioner.models.backbones.backbone import (
    Backbone,
    OneOutput,
    Preprocessing,
    channels_of,
    is_file,
    load_weights_file,
    no_such_weights,
)


def _timm_preprocessing(network: Any) -> Preprocessing:
    settings = network.pretrained_cfg
    interpolation = settings["interpolation"]
    return Preprocessing(
        tuple(settings["mean"]),
        tuple(settings["std"]),
        interpolation if interpolation in ("bilinear", "bicubic", "lanczos") else "bicubic",
    )


def any_timm(name: str, weights: str, tap: str | None) -> Backbone | None:
    """Return a network of timm up to its last feature map; None if timm has none of this name.

    `weights` may be `default@REVISION`: a commit, or a tag, of the weights on the Hugging Face Hub.

    Raises:
        ConfigError: It cannot be used, or there are no such weights.
        WeightsError: The weights cannot be had.
    """
    import timm

    if not timm.is_model(name):
        return None
    if tap is not None:
        raise ConfigError(f"encoder.tap: {name} of timm is tapped at its last feature map only")
    overlay: dict[str, str] | None = None
    if weights.startswith("default@"):
        hub_id = getattr(timm.get_pretrained_cfg(name), "hf_hub_id", None)
        if not hub_id or weights == "default@":
            raise ConfigError(
                f"encoder.weights: '{weights}' names no revision of weights of {name} on the "
                "Hugging Face Hub; use default@COMMIT for a network that is there, or a file"
            )
        overlay = {"hf_hub_id": f"{hub_id}@{weights.removeprefix('default@')}"}
    elif is_file(weights):
        overlay = {"file": weights}
    elif weights not in ("default", "none"):
        raise no_such_weights(weights, name, ["default", "default@REVISION", "none"])
    if is_file(weights):  # with features_only, timm would silently leave out what does not fit
        load_weights_file(timm.create_model(name), weights, name)
    try:
        network: Any = timm.create_model(
            name,
            pretrained=weights != "none",
            features_only=True,
            out_indices=(-1,),
            pretrained_cfg_overlay=overlay,
        )
    except (RuntimeError, AttributeError, AssertionError) as error:
        if weights == "none":
            raise ConfigError(
                f"encoder.backbone: {name} cannot be used as a feature extractor ({error})"
            ) from None
        raise _timm_weights_error(name, error) from None
    except Exception as error:  # noqa: BLE001  the hub's client raises many kinds when offline
        raise _timm_weights_error(name, error) from None
    body = OneOutput(network, 0)
    channels = channels_of(body, name)
    if channels != network.feature_info.channels()[-1]:
        raise ConfigError(
            f"encoder.backbone: {name} gives its features in an order other than [B, D, h, w]; "
            "only convolutional networks can be used"
        )
    return Backbone([("body", body)], channels=channels, preprocessing=_timm_preprocessing(network))


def _timm_weights_error(name: str, error: Exception) -> WeightsError:
    import timm

    settings = timm.get_pretrained_cfg(name)
    where = settings.hf_hub_id or settings.url if settings else None
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return WeightsError(
        f"the weights of {name} cannot be had ({reason}); fetch "
        f"{where or 'them'} on another machine and name the file with encoder.weights, "
        f"or fill {home}"
    )
