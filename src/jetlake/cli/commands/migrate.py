"""`jetlake migrate`: move a stream with its consumers to another server or cluster."""

from __future__ import annotations

import click

from jetlake.cli import output
from jetlake.cli.contexts import Target, load_context
from jetlake.cli.name_completion import context_names, stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, fail, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.values import Size
from jetlake.client.migration.migration import Migration, Moved

# The election of a leader in a cluster takes longer than an ordinary answer.
_PATIENCE_S = 15.0


@click.command(cls=SharedCommand, example="jetlake migrate ORDERS --to nats://a:4222,nats://b:4222 --replicas 3")
@click.argument("stream", shell_complete=stream_names)
@click.option("--to", metavar="URL", help="Server to move to, or several separated by commas.")
@click.option(
    "--to-context", metavar="NAME", shell_complete=context_names, help="Saved context of the server to move to."
)
@click.option(
    "--replicas", type=click.IntRange(1, 5), help="Replicas at the target. Default: as before; 1 outside of clusters."
)
@click.option(
    "--drain",
    "drain_s",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long workers have to acknowledge their messages; publishers continue meanwhile.",
)
@click.option(
    "--whole",
    "whole_max_bytes",
    type=Size(),
    metavar="SIZE",
    help="Copy streams up to this size during the pause, with message times and delivery counts. "
    "Default: 32MiB, and 0 to a cluster.",
)
@click.option("--undo", is_flag=True, help="Undo an unfinished move: continue at the source, delete the copy.")
@click.option("--delete-source", is_flag=True, help="Delete the stream at the source after the move.")
@json_option
@command
async def migrate(
    session: Session,
    stream: str,
    to: str | None,
    to_context: str | None,
    replicas: int | None,
    drain_s: float,
    whole_max_bytes: int | None,
    undo: bool,
    delete_source: bool,
    as_json: bool,
) -> None:
    """Move STREAM with its consumers and their positions to another server or cluster.

    Publishers and workers continue while the stream is copied. For a moment publishers find no stream, a pause that is
    measured and printed; then the target has it. After an interruption, run the same command again to continue, or
    --undo to return to the source.
    """
    if to is None and to_context is None:
        fail("target is missing; use --to nats://host:4222 or --to-context NAME", EXIT_USAGE)
    there = Session.of_target(_target(to, to_context), max(session.timeout_s, _PATIENCE_S))
    async with await session.connect(stay=True) as source, await there.connect(stay=True) as target:
        js = source.jetstream(domain=session.target.domain, timeout=max(session.timeout_s, _PATIENCE_S))
        migration = Migration(
            js,
            target.jetstream(domain=there.target.domain, timeout=there.timeout_s),
            stream,
            num_replicas=replicas,
            drain_s=drain_s,
            whole_max_bytes=whole_max_bytes,
            tell=(lambda _: None) if as_json else lambda step: click.echo(f"{stream}: {step}"),
        )
        if undo:
            goes_on = await migration.undo()
            done = "continues at the source" if goes_on else "was already deleted at the source; deleted its copy too"
            output.tell(f"Stream {stream} {done}", {"stream": stream, "goes_on": goes_on}, as_json)
            return
        moved = await migration.run()
        if delete_source:
            await js.delete_stream(stream)
    if as_json:
        output.print_json(moved)
    else:
        _print(moved, session.target.shown, there.target.shown)


def _target(to: str | None, context: str | None) -> Target:
    """Return the server to move to; the credentials of the source are not sent there."""
    return (load_context(context) if context else Target()).with_settings({"server": to})


def _print(moved: Moved, source: str, target: str) -> None:
    rows = [
        ("messages", moved.before.messages, moved.after.messages),
        ("first sequence", moved.before.first_seq, moved.after.first_seq),
        ("last sequence", moved.before.last_seq, moved.after.last_seq),
        ("subjects", moved.before.num_subjects, moved.after.num_subjects),
        *((f"pending for {one.name}", one.before, one.after) for one in moved.consumers),
    ]
    cells = [(what, output.count(before), output.count(after)) for what, before, after in rows]
    output.print_table(f"Stream {moved.stream}", ("", "before", "after"), cells, numbers=(1, 2))
    if moved.pause_s:
        how = f" to copy the whole stream ({moved.whole_because})" if moved.whole_because else ""
        click.echo(f"Publishers were paused for {moved.pause_s:.3f} s{how}")
    click.echo(f"Moved stream {moved.stream} from {source} to {target}")
