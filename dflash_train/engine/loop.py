"""The loop: next, step, log, validate, save, stop.

A step: prepare every micro-batch (from masks alone), sum the denominators over the window and the ranks, then forward
and backward one micro-batch after another, then one update. A step without anything to learn from is skipped by all
ranks and moves neither weights nor optimizer state.
"""

from __future__ import annotations

import logging
import math
import resource
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from dflash_train.checkpoint import resume
from dflash_train.checkpoint.layout import complete_steps, fault_of, saved_steps, step_folder
from dflash_train.config import TrainConfig
from dflash_train.engine.optim import clip_gradient, learning_rate, make_optimizer, set_learning_rate
from dflash_train.engine.processes import Processes
from dflash_train.engine.stop import Assignment, StopWatch
from dflash_train.errors import CheckpointError, NumericsError
from dflash_train.observe.metrics_file import MetricsFile
from dflash_train.recipes.base import Numbers, Recipe
from dflash_train.records import Batch

log = logging.getLogger(__name__)
LOG_SECONDS = 5.0  # least time between two progress lines


class StepData(Protocol):
    """Training batches by step."""

    def iterate(self, first_step: int) -> Generator[tuple[int, list[Batch], float]]:
        """From step `first_step` (counted from 0) on, endlessly: step, this rank's micro-batches, seconds waited."""
        ...


class SetData(Protocol):
    """A validation set in a fixed order, whole on every rank: FSDP's collectives need as many passes on each."""

    def batches(self, limit: int) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class StepReport:
    """What one optimizer step did. numbers is None for a skipped step."""

    numbers: Numbers | None
    grad_norm: float | None
    learning_rate: float
    tokens: int


@dataclass
class Training:
    """One link's training. `recipe.module` is sharded and on the device already."""

    config: TrainConfig
    config_sha256: str
    recipe: Recipe[Any]
    data: StepData
    validation: Mapping[str, SetData]
    processes: Processes
    assignment: Assignment
    optimizer: torch.optim.Optimizer = field(init=False)
    metrics: MetricsFile = field(init=False)
    _logged: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.optimizer = make_optimizer(self.recipe.module, self.config.optimizer)
        self.metrics = MetricsFile(self.assignment.run_dir / "metrics.jsonl")

    def run(self, watch: StopWatch) -> int:
        """Train until the target step, the deadline or a stop; always ends with a save. Returns the step reached."""
        target_step = self.assignment.target_step or self.config.max_steps
        done = self.resume()
        if done >= target_step:
            log.info("step %d of %d was reached by an earlier link: nothing left to do", done, target_step)
            return done
        with closing(self.data.iterate(done)) as source:
            for index, batches, data_seconds in source:
                began = time.perf_counter()
                done = index + 1
                report = self.step(done, [b.to(self.processes.device) for b in batches])
                self.record(done, target_step, report, data_seconds + time.perf_counter() - began, data_seconds)
                if due(done, self.config.validation.interval):
                    self.validate(done)
                if done >= target_step or self.processes.any(watch.reason() is not None):
                    break
                if due(done, self.config.checkpoint.interval):
                    self.save(done, "the interval")
        finished = done >= target_step
        self.save(done, "the end" if finished else (watch.reason() or "another rank's stop"))
        if finished:
            self.recipe.finish(self.assignment.run_dir)
        return done

    def step(self, step: int, batches: list[Batch]) -> StepReport:
        """One optimizer step (from 1). Raises NumericsError before anything moves if the loss is not finite."""
        recipe, processes, optimizer = self.recipe, self.processes, self.optimizer
        lr = learning_rate(step, self.config.optimizer.lr, self.config.lr_scheduler)
        recipe.module.train()
        prepared = [recipe.prepare(batch, step) for batch in batches]
        tokens = sum(batch.tokens for batch in batches)
        shares = torch.stack([recipe.weight(p).to(processes.device) for p in prepared]).sum()
        totals = processes.sum(
            torch.stack([shares, torch.tensor(float(tokens), dtype=torch.float64).to(shares.device)])
        )
        denominator, all_tokens = totals[0], int(totals[1])
        if float(denominator) == 0.0:
            return StepReport(None, None, lr, all_tokens)
        sums: Tensor | None = None
        for micro_batch, item in enumerate(prepared):
            torch.manual_seed(step_seed(self.config.seed, step, micro_batch, processes.rank))
            loss, share = recipe.loss(item, denominator)
            # FSDP averages gradients over ranks; the shares of all ranks add up to the loss, so undo the division.
            (loss * processes.world_size).backward()
            sums = share if sums is None else sums + share
        assert sums is not None
        numbers = recipe.numbers(processes.sum(sums))
        norm = float(clip_gradient(recipe.module, self.config.optimizer.clip))
        if not (math.isfinite(numbers.loss) and math.isfinite(norm)):
            raise NumericsError(
                f"step {step}: loss {numbers.loss}, gradient norm {norm}: nothing was updated; look at this step's "
                f"batch ({', '.join(batches[0].ids[:4])} ...) and at the learning rate {lr}"
            )
        set_learning_rate(optimizer, lr)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return StepReport(numbers, norm, lr, all_tokens)

    @torch.no_grad()
    def validate(self, step: int) -> None:
        """Every named set with the training's label source; the anchors of a set are the same at every validation."""
        self.recipe.module.eval()
        results = {}
        for name, data in self.validation.items():
            prepared = [
                self.recipe.prepare(b.to(self.processes.device), 0)
                for b in data.batches(self.config.validation.max_batches)
            ]
            one = torch.ones((), dtype=torch.float64, device=self.processes.device)
            numbers = self.recipe.numbers(torch.stack([self.recipe.loss(p, one)[1] for p in prepared]).sum(0))
            empty = numbers.valid_blocks == 0
            results[name] = {
                "val_loss": None if empty else numbers.loss,  # a loss of 0 would be the best there is
                "val_accept_len": None if empty else numbers.accept_len,
                "val_acc": numbers.accuracy,
                "valid_anchors": numbers.valid_blocks,
            }
            if empty and self.processes.is_zero:
                log.warning("VALIDATION SET %s HAS NO VALID ANCHOR in its first %d batches: val_acc is 0 and means "
                            "nothing", name, self.config.validation.max_batches)  # fmt: skip
            elif self.processes.is_zero:
                log.info("validation %s: loss %.4f, accuracy %s, accept_len %s", name, numbers.loss,
                         _spell(numbers.accuracy), _spell(numbers.accept_len))  # fmt: skip
        if self.processes.is_zero:
            self.metrics.validation(
                {"step": step, "link": self.assignment.link, "time": time.time(), "validation": results}
            )

    def record(self, step: int, target_step: int, report: StepReport, seconds: float, data_seconds: float) -> None:
        """Rank zero's metrics line, and a line in the log now and then."""
        if not self.processes.is_zero:
            return
        numbers, skipped = report.numbers, report.numbers is None
        self.metrics.step(
            {
                "step": step,
                "link": self.assignment.link,
                "time": time.time(),
                "loss": numbers.loss if numbers else None,
                "base_loss": numbers.base_loss if numbers else None,
                "selector_loss": numbers.selector_loss if numbers else None,
                "grad_norm": report.grad_norm,
                "lr": report.learning_rate,
                "step_seconds": round(seconds, 6),
                "data_seconds": round(data_seconds, 6),
                "tokens": report.tokens,
                "valid_blocks": numbers.valid_blocks if numbers else 0,
                "accept_len": numbers.accept_len if numbers else None,
                "skipped": skipped,
                "skip_reason": self.recipe.empty_reason if skipped else None,
                "peak_bytes": peak_bytes(self.processes.device),
                "accuracy": numbers.accuracy if numbers else None,
                "candidate_recall": numbers.candidate_recall if numbers else None,
            }
        )
        if time.monotonic() - self._logged >= LOG_SECONDS or step == target_step:
            self._logged = time.monotonic()
            loss, accept = (numbers.loss, numbers.accept_len) if numbers else (None, None)
            log.info("step %d of %d: loss %s, accept_len %s, lr %.2e, %.3f s a step (data %.3f)", step, target_step,
                     _spell(loss), _spell(accept), report.learning_rate, seconds, data_seconds)  # fmt: skip

    def state(self, step: int) -> resume.TrainerState:
        """What the checkpoint of `step` says of this run."""
        return resume.TrainerState(
            step=step,
            learning_rate=learning_rate(max(step, 1), self.config.optimizer.lr, self.config.lr_scheduler),
            settings=resume.settings_of(self.config),
            trainable=sorted(name for name, p in self.recipe.module.named_parameters() if p.requires_grad),
        )

    def save(self, step: int, why: str) -> None:
        """A complete checkpoint of `step`; every rank takes part."""
        began = time.monotonic()
        folder = resume.save(
            self.assignment.run_dir,
            self.recipe.module,
            self.optimizer,
            self.state(step),
            self.recipe.target_fingerprint,
            self.config_sha256,
            self.processes,
        )
        if self.processes.is_zero:
            log.info("saved %s because of %s (%.1f s)", folder.name, why, time.monotonic() - began)

    def resume(self) -> int:
        """Take the newest complete checkpoint of the run directory, the same on every rank; 0 when there is none."""
        step = self.processes.from_zero(max(complete_steps(self.assignment.run_dir), default=0))
        for newer in saved_steps(self.assignment.run_dir):
            if newer > step and self.processes.is_zero:
                log.warning("passed over: %s", fault_of(step_folder(self.assignment.run_dir, newer)))
        if not step:
            if self.assignment.run_dir.joinpath("metrics.jsonl").exists() and self.assignment.link > 1:
                log.warning("no complete checkpoint in the run directory: starting from step 0")
            log.info("fresh run: %d parameters", sum(p.numel() for p in self.recipe.module.parameters()))
            return 0
        folder = step_folder(self.assignment.run_dir, step)
        state = resume.load(
            folder, self.recipe.module, self.optimizer, self.state(step), self.recipe.target_fingerprint
        )
        if state.step != step:
            raise CheckpointError(f"{folder}: its trainer state says step {state.step}")
        schedule = self.config.lr_scheduler
        log.info("resumed %s: model, optimizer, lr %.3e (%s, horizon %s), data position and randomness of step %d",
                 folder.name, state.learning_rate, schedule.kind.value, schedule.horizon, step)  # fmt: skip
        return step


def due(step: int, interval: int) -> bool:
    """Is something with this interval (0: never) due after this step?"""
    return interval > 0 and step % interval == 0


def step_seed(seed: int, step: int, micro_batch: int, rank: int) -> int:
    """Seed of torch's own generator for dropout in one micro-batch: nothing of it needs to be saved."""
    return (((seed * 1_000_003 + step) * 1_009 + micro_batch) * 65_537 + rank) % 2**63


def peak_bytes(device: torch.device) -> int:
    """Peak memory so far: of the GPU where there is one, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _spell(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
