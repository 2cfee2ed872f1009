"""`jetlake server run`: a server for development with users, and contexts that reach it."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import click

from jetlake import platform
from jetlake.cli import output
from jetlake.cli.contexts import Target, save_context, select_context
from jetlake.cli.contexts import names as context_names
from jetlake.cli.session import Session, confirm, force_option, guarded, pass_session
from jetlake.cli.shared_options import SharedCommand

__all__ = ["run"]

_USERS = {"": "USER", "_service": "SERVICE", "_system": "SYSTEM"}
"""What a context's name ends with, and the account of its user."""


@click.command("run", cls=SharedCommand, example="jetlake server run dev --jetstream")
@click.argument("name", default="nats_development")
@click.option("--port", type=click.IntRange(-1, 65535), default=4222, show_default=True, help="Port for clients.")
@click.option("--monitor", type=click.IntRange(-1, 65535), metavar="PORT", help="Port of the dashboard and of reports.")
@click.option("--jetstream/--no-jetstream", default=True, help="Whether streams can be created.")
@click.option("--store", metavar="DIR", help="Where streams are stored. Default: a directory beside the contexts.")
@click.option("--clean", is_flag=True, help="Delete what an earlier run stored.")
@click.option("--select", is_flag=True, help="Make the context of the users the selected one.")
@click.option("-V", "--verbose", is_flag=True, help="Log at debug level.")
@force_option
@pass_session
def run(
    session: Session,
    name: str,
    port: int,
    monitor: int | None,
    jetstream: bool,
    store: str | None,
    clean: bool,
    select: bool,
    verbose: bool,
    force: bool,
) -> None:
    """Run a server for development until Ctrl-C, with three users and a context for each.

    The contexts are NAME for a user of account USER, NAME_service for one of account SERVICE, and NAME_system for one
    of the system account. A second run with the same NAME keeps the passwords and the streams.
    """
    folder = Path(store) if store else _folder(name)
    if clean and folder.exists():
        confirm(f"Delete {folder} and all streams in it?", force)
        shutil.rmtree(folder)
    flags = guarded(lambda: _prepare(name, folder, port, monitor, jetstream), session)
    if select:
        guarded(lambda: select_context(name), session)
    output.print_facts(
        f"Server for development on port {port}; press Ctrl-C to stop",
        {
            "": [
                ("Contexts", ", ".join(name + ending for ending in _USERS)),
                ("Store", folder if jetstream else "none: JetStream is off"),
                ("Use it", f"jetlake pub hello world --context {name}"),
            ]
        },
    )
    from jetlake.cli.main import main

    raise SystemExit(main(["serve", *flags, *(["-D"] if verbose else [])]))


def _folder(name: str) -> Path:
    return platform.user_folder("XDG_DATA_HOME", ".local", "share") / "jetlake" / name


def _prepare(name: str, folder: Path, port: int, monitor: int | None, jetstream: bool) -> list[str]:
    """Write the configuration and the contexts; returns the flags of the server."""
    from jetlake.cli.contexts import load_context

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    known = set(context_names())
    accounts = []
    for ending, account in _USERS.items():
        saved = load_context(name + ending) if name + ending in known else Target()
        password = saved.password or secrets.token_urlsafe(16)
        user = account.lower()
        save_context(
            name + ending,
            Target(
                server=f"nats://127.0.0.1:{port}",
                user=user,
                password=password,
                description=f"Account {account} of the server for development",
            ),
        )
        streams = " jetstream: enabled," if jetstream and account != "SYSTEM" else ""
        accounts.append(
            f"  {account}: {{{streams} users: [ {{ user: {user}, password: {output.quoted(password)} }} ] }}"
        )
    lines = ["accounts {", *accounts, "}", "system_account: SYSTEM", 'host: "127.0.0.1"', f"port: {port}"]
    if monitor is not None:
        lines.append(f'http: "127.0.0.1:{monitor}"')
    if jetstream:
        lines.append(f"jetstream {{ store_dir: {output.quoted(str(folder))} }}")
    file = folder / "server.conf"
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o600)
    return ["-c", str(file)]
