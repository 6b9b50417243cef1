"""Errors whose message is one sentence for the user: the problem, its place and the remedy.

Commands print the message on stderr and turn it into an exit code; they catch no other errors.
"""

from __future__ import annotations


class CaptionerError(Exception):
    """Base of every error that a user can cause and mend."""


class ConfigError(CaptionerError):
    """A setting that cannot be used; the message names its key and what is accepted."""


class ImageError(CaptionerError):
    """A photo that cannot be read; only `Captioner` begins the message with the photo's path."""


class DataError(CaptionerError):
    """A data set that cannot be read."""


class WeightsError(CaptionerError):
    """Encoder weights that cannot be loaded; the message names the file and where to put it."""


class CheckpointError(CaptionerError):
    """A model or run folder that is missing, incomplete or damaged."""
