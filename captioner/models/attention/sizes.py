"""A check that several scores and decoders share."""

from __future__ import annotations

from captioner.errors import ConfigError


def require_divisor(key: str, heads: int, size: int, name: str) -> None:
    """Require that `heads` parts of one size make up `size`.

    Raises:
        ConfigError: They do not; names the setting `key`.
    """
    if size % heads:
        raise ConfigError(f"{key}: {heads} does not divide {name} {size}; use a divisor of {size}")
