"""`launch cancel`: end a whole chain, tail first, and say only what two looks at the queue have shown."""

from __future__ import annotations

import click

from launcher.cli.common import confirm, find_run, note, open_runs, place_options


@click.command()
@click.argument("run", metavar="RUN")
@place_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask before cancelling.")
@click.option("--now", is_flag=True, help="Do not wait for the running link to save.")
def cancel(run: str, site: str | None, work_root: str | None, yes: bool, now: bool) -> None:
    """Cancel every link of RUN.

    A stop file is written first, so a link that starts in between ends at once. Waiting links go before the running
    one, which is asked to save. Done when two looks at the queue find nothing left.
    """
    from launcher.chain import cancel_run
    from launcher.errors import AlarmPresent, SubmissionUnsure, UsageError
    from launcher.records import LinkState
    from launcher.scheduler.base import QueueUnavailable, scheduler_for

    opened = open_runs(site, work_root, run)
    row = find_run(opened.store, run)
    if not opened.writable:
        raise UsageError(f"{opened.store.path} cannot be written: only its owner can cancel {row.run_id}")
    opened.refresh(row, force=True)
    row = opened.store.find_run(row.run_id)
    over = (LinkState.ENDED, LinkState.REFUSED)
    live = [link for link in opened.store.links(row.run_id) if link.state not in over]
    if not live:
        note(f"{row.run_id} has no live link: nothing to cancel")
        return
    click.echo(f"{row.run_id}: {len(live)} live links", err=True)
    for link in live:
        click.echo(f"  link {link.number}  job {link.job_id or 'not known'}  {link.state.value}", err=True)
    confirm(f"Cancel {row.run_id}?", yes)
    try:
        scheduler = scheduler_for(row.backend, opened.store.path.parent)
        report = cancel_run(row, opened.store, scheduler, note, save_wait=0.0 if now else None)
    except QueueUnavailable as error:
        raise SubmissionUnsure(
            f"the scheduler cannot be asked: {error}: run `launch cancel {row.run_id}` again when it answers"
        ) from None
    if report.survivors:
        left = ", ".join(f"{job.job_id} ({job.word})" for job in report.survivors)
        raise AlarmPresent(f"{row.run_id} is not gone: {left}: run `launch cancel {row.run_id}` again")
    click.echo(f"cancelled {row.run_id}: {len(report.cancelled)} links, nothing left in the queue")
