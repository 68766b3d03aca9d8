"""Bring the database up to what queue, events and checkpoints say. Runs at the start of every command."""

from __future__ import annotations

from launcher.store import RunRow, Store


def reconcile(store: Store, run: RunRow | None = None, force: bool = False) -> list[str]:
    """Ingest events, adopt jobs by token, update link states; notes for stderr.

    Nothing is submitted or cancelled here. The queue is asked at most once in the run's `poll_seconds`, or at once with
    `force`. A queue that cannot be asked makes link states UNKNOWN at most, never ended.
    """
    raise NotImplementedError
