"""An evaluation as tables that fit a terminal of 100 columns."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from dflash_train.config import Precision
from dflash_train.evaluate.report import Evaluation


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    """The run, then one column a set."""
    accepted = ", ".join(map(str, evaluation.accepted))
    title = f"{evaluation.run}: the draft of step {evaluation.step}, {evaluation.precision.value}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("measure")
    for result in evaluation.sets:
        table.add_column(result.name, justify="right")
    rows = [
        ("utterances", [str(r.utterances) for r in evaluation.sets]),
        ("WER of the target", [f"{100 * r.errors.rate:.1f} %" for r in evaluation.sets]),
        ("  inserted, deleted, substituted", [
            f"{r.errors.insertions}, {r.errors.deletions}, {r.errors.substitutions} of {r.errors.words}"
            for r in evaluation.sets]),
        ("  empty outputs, truncated", [f"{r.errors.empty}, {r.truncated}" for r in evaluation.sets]),
        ("MAL = 1 + accepted / rounds", [f"{r.counters.mal:.2f}" for r in evaluation.sets]),
        ("  accepted, rounds", [f"{r.counters.accepted}, {r.counters.rounds}" for r in evaluation.sets]),
    ]  # fmt: skip
    for slot in range(evaluation.block_size - 1):
        rows.append((f"  position {slot + 1}: of rounds (of survivors)", [
            f"{100 * r.counters.unconditional[slot]:.0f} % ({100 * r.counters.conditional[slot]:.0f} %)"
            for r in evaluation.sets]))  # fmt: skip
    rows += [
        ("rows identical to target-only greedy", [
            f"{r.utterances - len(r.divergences)} of {r.utterances}" for r in evaluation.sets]),
        ("tokens/s without the draft", [f"{r.tokens_per_second_alone:.0f}" for r in evaluation.sets]),
        ("tokens/s with the draft", [f"{r.tokens_per_second_with_draft:.0f}" for r in evaluation.sets]),
    ]  # fmt: skip
    for name, values in rows:
        table.add_row(name, *values)
    console.print(
        f"trained to step {evaluation.step} in {evaluation.links} links, "
        f"loss {evaluation.first_loss:.3f} -> {evaluation.last_loss:.3f}, accepted checkpoints: {accepted}"
    )
    console.print(table)
    for result in evaluation.sets:
        for d in result.divergences:
            margin = "past the target's end" if d.margin is None else f"top-2 margin {d.margin:.4f}"
            console.print(f"diverged: {result.name} {d.id} at token {d.position}, {margin}")
    if evaluation.precision is Precision.float32:
        verdict = "identical" if evaluation.identical else "NOT identical: a fault in decoding, since this is fp32"
        console.print(f"with and without the draft: {verdict}", style="green" if evaluation.identical else "bold red")
