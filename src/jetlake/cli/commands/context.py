"""`jetlake context …`: saved servers and credentials."""

from __future__ import annotations

import click

from jetlake.cli import contexts, output
from jetlake.cli.name_completion import context_names
from jetlake.cli.session import EXIT_USAGE, Session, confirm, fail, force_option, guarded, json_option, pass_session
from jetlake.cli.shared_options import SharedGroup


@click.group(cls=SharedGroup)
def context() -> None:
    """Save servers and credentials under a name."""


@context.command("save", example="jetlake context save prod -s nats://host:4222 --user me --select")
@click.argument("name")
@click.option("--select", "use", is_flag=True, help="Use it by default.")
@json_option
@pass_session
def save(session: Session, name: str, use: bool, as_json: bool) -> None:
    """Save the options and environment variables as NAME: jetlake -s nats://host:4222 --user me context save prod."""
    file = guarded(lambda: contexts.save_context(name, session.target), session)
    if use:
        guarded(lambda: contexts.select_context(name), session)
    output.tell(f"Saved context {name} in {file}", {"context": name, "file": str(file)}, as_json)


@context.command("ls", example="jetlake context ls")
@json_option
def list_contexts(as_json: bool) -> None:
    """List saved contexts; a star marks the selected one."""
    names, of_nats, current = contexts.names(), contexts.nats_names(), contexts.selected()
    if as_json:
        output.print_json({"contexts": names, "nats": of_nats, "selected": current})
        return
    if not names and not of_nats:
        click.echo("No contexts. Save one: jetlake -s nats://host:4222 context save NAME")
    for name in (*names, *of_nats):
        click.echo(f"{'*' if name == current else ' '} {name}" + (" (of the nats command)" if name in of_nats else ""))


@context.command("select", example="jetlake context select prod")
@click.argument("name", shell_complete=context_names)
@json_option
@pass_session
def select(session: Session, name: str, as_json: bool) -> None:
    """Use context NAME by default."""
    guarded(lambda: contexts.select_context(name), session)
    output.tell(f"Switched to context {name}", {"selected": name}, as_json)


@context.command("rm", example="jetlake context rm prod --force")
@click.argument("name", shell_complete=context_names)
@force_option
@json_option
@pass_session
def remove(session: Session, name: str, force: bool, as_json: bool) -> None:
    """Delete context NAME."""
    if name in contexts.nats_names():
        fail(f"{name} is a context of the nats command; delete it with: nats context rm {name}", EXIT_USAGE)
    guarded(lambda: contexts.require(name), session)
    confirm(f"Delete context {name}?", force)
    guarded(lambda: contexts.remove_context(name), session)
    output.tell(f"Deleted context {name}", {"removed": name}, as_json)
