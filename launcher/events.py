"""Take in the JSON lines that nodes appended to <run>/events. Twice is the same as once.

A file is read from where the last time ended, whole lines only: a torn last line waits until it is complete. An event
is known by its uuid, so a file that was replaced (another inode, or shorter) is read again without harm.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.records import LinkOutcome
from launcher.store import RunRow, Store


@dataclass(frozen=True)
class ExitRecord:
    """The exit record of one link, as its agent wrote it."""

    link: int
    job_id: str
    outcome: LinkOutcome
    exit_code: int
    signal: int
    step: int
    start_step: int
    detail: str


@dataclass(frozen=True)
class Beacon:
    """A link's first sign of life."""

    link: int
    job_id: str
    node: str
    time: float  # unix seconds, by the node's clock
    end: float  # when the scheduler ends the job


def ingest_events(store: Store, run: RunRow) -> int:
    """Read what is new in the run's event files; how many events were new."""
    known = {
        row["name"]: (row["inode"], row["offset"])
        for row in store.query("select name, inode, offset from event_files where run_id = ?", (run.run_id,))
    }
    added = 0
    for path in sorted(run.paths.events.glob("*.jsonl")):
        stat = path.stat()
        inode, offset = known.get(path.name, (stat.st_ino, 0))
        if inode != stat.st_ino or stat.st_size < offset:
            offset = 0
        if stat.st_size == offset:
            continue
        rows, offset = read_lines(path, offset, run.run_id)
        with store.writing() as db:
            before = db.table("events").count
            db.table("events").insert_all(rows, pk="uuid", ignore=True)
            added += db.table("events").count - before
            position = {"run_id": run.run_id, "name": path.name, "inode": stat.st_ino, "offset": offset}
            db.table("event_files").upsert(position, pk=("run_id", "name"))
    return added


def read_lines(path: Path, offset: int, run_id: str) -> tuple[list[dict[str, Any]], int]:
    """Rows of the whole lines from `offset` on, and the offset after the last of them. What is no event is left out."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    rows = []
    for line in whole.splitlines():
        try:
            event = json.loads(line)
            rows.append(
                {
                    "uuid": str(event["uuid"]),
                    "run_id": run_id,
                    "link": int(event["link"]),
                    "job_id": str(event["job"]),
                    "node": str(event["node"]),
                    "kind": str(event["kind"]),
                    "time": float(event["time"]),
                    "payload": json.dumps(event),
                }
            )
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
    return rows, offset + len(whole)


def exit_records(store: Store, run_id: str) -> dict[tuple[int, str], ExitRecord]:
    """The newest exit record of each (link, job id), without those that this launcher cannot read."""
    sql = "select payload from events where run_id = ? and kind = 'exit' order by time, rowid"
    records = {}
    for row in store.query(sql, (run_id,)):
        event = json.loads(row["payload"])
        try:
            record = ExitRecord(
                link=int(event["link"]),
                job_id=str(event["job"]),
                outcome=LinkOutcome(event["outcome"]),
                exit_code=int(event["exit_code"]),
                signal=int(event["signal"]),
                step=int(event["step"]),
                start_step=int(event["start_step"]),
                detail=str(event.get("detail", "")),
            )
        except (KeyError, ValueError, TypeError, OverflowError):
            continue
        records[record.link, record.job_id] = record
    return records


def beacons(store: Store, run_id: str) -> dict[int, Beacon]:
    """The newest beacon of each link."""
    sql = "select payload from events where run_id = ? and kind = 'beacon' order by time, rowid"
    found = {}
    for row in store.query(sql, (run_id,)):
        event = json.loads(row["payload"])
        try:
            times = float(event["time"]), float(event["end"])
        except (KeyError, ValueError, TypeError, OverflowError):
            continue
        beacon = Beacon(int(event["link"]), str(event["job"]), str(event["node"]), *times)
        found[beacon.link] = beacon
    return found
