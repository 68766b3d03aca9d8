"""Errors that a person can act on. Each message says what is wrong, the value seen, and what to change."""

from __future__ import annotations


class DFlashError(Exception):
    """Base of everything that `dflash-train` reports in one line, without a traceback."""

    exit_code = 1


class ConfigError(DFlashError):
    """A config key is unknown, has the wrong type, or contradicts another. `key` is its dotted path."""

    exit_code = 3

    def __init__(self, message: str, key: str = "", nearest: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.nearest = nearest


class DataError(DFlashError):
    """A manifest, a recording or a transcript cannot be used."""

    exit_code = 4


class TargetError(DFlashError):
    """The target cannot be loaded strictly, or is not the one that the run was checked with."""

    exit_code = 4


class CheckpointError(DFlashError):
    """A checkpoint is incomplete, or belongs to another target or another trainable set."""

    exit_code = 4


class ExportError(DFlashError):
    """An export would not be, or is not, what a server needs."""

    exit_code = 4


class NotAcceptedError(DFlashError):
    """The step asked for was not accepted by the launcher."""

    exit_code = 8


class NumericsError(DFlashError):
    """A loss, a gradient or a weight is not finite."""

    exit_code = 1
