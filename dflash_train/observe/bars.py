"""Progress bars of the command line: on a terminal's stderr, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

Seen = Callable[[], None]  # called after each row


@contextmanager
def bars(loading: str = "loading") -> Iterator[Callable[[str, int], Seen]]:
    """Gives bar(what, rows), which opens a bar and returns what is called after each row.

    Until the first bar is open, a pulse says what is `loading`.
    """
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        pulse = progress.add_task(loading, total=None)

        def bar(what: str, rows: int) -> Seen:
            progress.update(pulse, visible=False)
            task = progress.add_task(what, total=rows)
            return lambda: progress.advance(task)

        yield bar
