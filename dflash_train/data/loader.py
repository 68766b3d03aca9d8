"""Which rows make an optimizer step, and the processes that load them.

The data position is arithmetic, not state: the rows of step s (counted from 0: s steps are done before it) are the
positions s * batch_size to (s + 1) * batch_size - 1 of an endless sequence, epoch after epoch, each in an order of its
own from (seed, epoch). Rank r and micro-batch m take a consecutive part of these *global rows*. So a resume at any step
costs nothing and is exact on any world size that divides the batch, whatever the number of workers.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from torch.utils.data import DataLoader, Dataset

from dflash_train.data.collate import collate
from dflash_train.data.manifest import Manifest
from dflash_train.data.prompt import Prompt
from dflash_train.errors import ConfigError, DataError, DFlashError
from dflash_train.records import Batch


@dataclass(frozen=True)
class Share:
    """This rank's part of the rows of a step. batch_size: rows of a step over all ranks and micro-batches."""

    batch_size: int
    accumulation: int = 1
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        parts = self.accumulation * self.world_size
        if self.batch_size % parts:
            raise ConfigError(
                f"data.batch_size {self.batch_size} is not a multiple of accumulation {self.accumulation} x "
                f"{self.world_size} ranks: write {max(1, round(self.batch_size / parts)) * parts}",
                key="data.batch_size",
            )

    def rows(self, micro_batch: int) -> range:
        """Global rows of one micro-batch of this rank."""
        size = self.batch_size // (self.accumulation * self.world_size)
        first = (micro_batch * self.world_size + self.rank) * size
        return range(first, first + size)


@lru_cache(maxsize=4)
def epoch_order(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    """int64 [num_rows]: the lines of the manifest in the order of one epoch."""
    return np.random.default_rng([seed, epoch]).permutation(num_rows)


def line_of(position: int, num_rows: int, seed: int | None) -> int:
    """Line of the manifest (from 0) at a position of the endless sequence; without a seed in the manifest's order."""
    epoch, place = divmod(position, num_rows)
    return place if seed is None else int(epoch_order(num_rows, seed, epoch)[place])


class TrainData(Dataset[list[Batch] | DFlashError]):
    """The training rows, by optimizer step."""

    def __init__(
        self, manifest: Manifest, prompt: Prompt, share: Share, seed: int | None, num_workers: int = 0
    ) -> None:
        """seed: of the order of each epoch; None: the manifest's order."""
        self.manifest, self.prompt, self.share = manifest, prompt, share
        self.seed, self.num_workers = seed, num_workers

    def lines(self, step: int, rows: range) -> list[int]:
        """Lines of the manifest that are the given global rows of a step."""
        start = step * self.share.batch_size
        return [line_of(start + row, len(self.manifest), self.seed) for row in rows]

    def batches(self, step: int) -> list[Batch]:
        """The micro-batches of this rank in step `step` (from 0)."""
        parts = [self.share.rows(micro_batch) for micro_batch in range(self.share.accumulation)]
        return [collate(self.manifest, self.lines(step, rows), rows, self.prompt) for rows in parts]

    def __getitem__(self, step: int) -> list[Batch] | DFlashError:
        """What a worker sends. Errors go as values: torch would raise them with the worker's traceback in the text."""
        try:
            return self.batches(step)
        except DFlashError as error:
            return error

    def iterate(self, first_step: int) -> Generator[tuple[int, list[Batch], float]]:
        """Endless (step, micro-batches, seconds waited for them) from `first_step` on, loaded ahead by the workers.

        The workers end with the iterator: close it when leaving the loop.
        """
        steps = itertools.count(first_step)
        loader = DataLoader(
            self,
            batch_size=None,
            sampler=itertools.count(first_step),
            num_workers=self.num_workers,
            prefetch_factor=4 if self.num_workers else None,
            worker_init_fn=leave_signals_to_the_trainer,
            pin_memory=False,
        )
        source = iter(loader)
        try:
            while True:
                began = time.perf_counter()
                batches = next(source)
                if isinstance(batches, DFlashError):
                    raise batches
                yield next(steps), batches, time.perf_counter() - began
        finally:
            del source  # its workers end with it, also where a traceback keeps this frame


def leave_signals_to_the_trainer(_worker: int) -> None:
    """Slurm signals every process of a step. A worker that ended at once would take the trainer with it before it has
    saved; the trainer ends the workers itself."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


class EvalData:
    """A held-out set: fixed order, every row once. Every rank reads all of it, so no collective waits for a rank."""

    def __init__(self, manifest: Manifest, prompt: Prompt, batch_size: int) -> None:
        self.manifest, self.prompt, self.batch_size = manifest, prompt, batch_size

    def batches(self, limit: int | None = None) -> Iterator[Batch]:
        """At most `limit` batches; the last one may be smaller. Row numbers are lines of the manifest (from 0)."""
        firsts = range(0, len(self.manifest), self.batch_size)
        for first in firsts[:limit]:
            rows = range(first, min(first + self.batch_size, len(self.manifest)))
            yield collate(self.manifest, rows, rows, self.prompt)


def max_supervised_of_a_row(manifest: Manifest, prompt: Prompt) -> int:
    """Supervised tokens of the row that has most: no row can hold more anchors. From durations and texts alone.

    Every row is packed on the way, so a text that the tokenizer cannot write or audio without a frame is found before
    the first step: raises DataError with file:line.
    """
    most = 0
    for index, utterance in enumerate(manifest.utterances()):
        try:
            most = max(most, int(prompt.row(utterance).loss_mask.sum()))
        except DataError as error:
            raise DataError(f"{manifest.where(index)}: {error}") from None
    return most
