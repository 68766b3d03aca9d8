"""Errors that a person can act on, one class for each exit code (listed in `launch --help`).

Wording has four parts: what was wrong (with file:line:key), what was seen, what is allowed or the nearest match, and
what to do. The edge (cli/main.py) prints them in one line; a traceback is shown only with --debug.
"""

from __future__ import annotations


class LauncherError(Exception):
    """Base of everything that is reported without a traceback."""

    exit_code = 1


class UsageError(LauncherError):
    """The command line cannot be what was meant."""

    exit_code = 2


class SpecError(LauncherError):
    """An experiment spec, a site profile or the trainer's config is invalid."""

    exit_code = 3


class PreflightError(LauncherError):
    """The config is valid, but what it names cannot be used here (a missing path, no Slurm, a dead interpreter)."""

    exit_code = 4


class SubmissionRefused(LauncherError):
    """Slurm said no; no job exists."""

    exit_code = 5


class SubmissionUnsure(LauncherError):
    """It is not known whether a job exists. Nothing is resubmitted; `launch status` keeps looking."""

    exit_code = 6


class PartialChain(LauncherError):
    """Some links were accepted, the rest not."""

    exit_code = 7


class NotAccepted(LauncherError):
    """A checkpoint failed a check of acceptance."""

    exit_code = 8


class LockHeld(LauncherError):
    """Somebody else holds the run directory or the database."""

    exit_code = 9


class AlarmPresent(LauncherError):
    """A run that was waited for ended short of its target step, or `status --exit-status` found an alarm."""

    exit_code = 10
