"""`jetlake context …`: saved servers and credentials."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import click
import msgspec

from jetlake import platform
from jetlake.cli import contexts, output
from jetlake.cli.choosing import pick
from jetlake.cli.name_completion import context_names
from jetlake.cli.session import (
    EXIT_FAILED,
    EXIT_USAGE,
    Session,
    command,
    confirm,
    fail,
    force_option,
    guarded,
    json_option,
    pass_session,
)
from jetlake.cli.shared_options import SharedGroup
from jetlake.errors import ConfigError, JetlakeError


@click.group(cls=SharedGroup)
def context() -> None:
    """Save servers and credentials under a name."""


_description = click.option("--description", metavar="TEXT", help="Description in the list of contexts.")
_select = click.option("--select", "use", is_flag=True, help="Use it by default.")
_nsc = click.option(
    "--nsc",
    metavar="NSC://OPERATOR/ACCOUNT/USER",
    help="Save the servers and credentials that the program nsc has for this user.",
)
_name = click.argument("name", required=False, shell_complete=context_names)
_connect = click.option("--connect", "connects", is_flag=True, help="Also connect with it.")


@context.command("save", example="jetlake context save prod -s nats://host:4222 --user me --password x --select")
@click.argument("name")
@_description
@_select
@_nsc
@json_option
@pass_session
def save(session: Session, name: str, description: str | None, use: bool, nsc: str | None, as_json: bool) -> None:
    """Save the options and environment variables as NAME: jetlake -s nats://host:4222 --user me context save prod.

    Settings of a context that exists are kept unless an option replaces them.
    """
    base = contexts.load_context(name) if name in contexts.names() else None
    _save(session, name, description, use, nsc, as_json, base)


def _save(
    session: Session,
    name: str,
    description: str | None,
    use: bool,
    nsc: str | None,
    as_json: bool,
    base: contexts.Target | None,
) -> None:
    def write() -> Path:
        target = session.typed_onto(base) if base is not None else session.target
        if nsc:
            from jetlake.client.settings.saved_context import ask_nsc

            servers, creds = ask_nsc(nsc)
            target = target.with_settings({"server": servers, "creds": creds})
        if description is not None:
            target = msgspec.structs.replace(target, description=description)
        return contexts.save_context(name, target)

    file = guarded(write, session)
    if use:
        guarded(lambda: contexts.select_context(name), session)
    output.tell(f"Saved context {name} in {file}", {"context": name, "file": str(file)}, as_json)


@context.command("copy", example="jetlake context copy prod test -s nats://test:4222")
@click.argument("source", shell_complete=context_names)
@click.argument("name")
@_description
@_select
@_nsc
@json_option
@pass_session
def copy(
    session: Session, source: str, name: str, description: str | None, use: bool, nsc: str | None, as_json: bool
) -> None:
    """Copy context SOURCE to NAME; options replace its settings."""
    if name in contexts.names():
        fail(f"context {name} already exists. Delete it: jetlake context rm {name}", EXIT_USAGE)
    _save(session, name, description, use, nsc, as_json, guarded(lambda: contexts.load_context(source), session))


@context.command("edit", example="jetlake context edit prod")
@_name
@json_option
@pass_session
def edit(session: Session, name: str | None, as_json: bool) -> None:
    """Edit context NAME as JSON in your editor (EDITOR or VISUAL)."""
    name = name or pick("context", contexts.names(), _NONE)
    file = guarded(lambda: contexts.require(name), session)
    if not (os.environ.get("EDITOR") or os.environ.get("VISUAL")):
        fail("set EDITOR to the editor to use; for example: EDITOR=vi jetlake context edit", EXIT_USAGE)
    before = file.read_text()
    complete = msgspec.structs.asdict(contexts.Target())
    shown = msgspec.json.format(msgspec.json.encode({**complete, **msgspec.json.decode(before or "{}")}), indent=2)
    typed = click.edit(shown.decode(), extension=".json")
    if typed is None:
        output.tell(f"No changes to context {name}", {"context": name, "file": str(file)}, as_json)
        return
    try:
        target = msgspec.json.decode(typed, type=contexts.Target)
    except msgspec.DecodeError as error:
        fail(f"context {name} is unchanged: {error}")
    guarded(lambda: contexts.save_context(name, target), session)
    output.tell(f"Saved context {name} in {file}", {"context": name, "file": str(file)}, as_json)


@context.command("ls", example="jetlake context ls")
@click.option("-n", "--names", "names_only", is_flag=True, help="Print only names.")
@json_option
def list_contexts(names_only: bool, as_json: bool) -> None:
    """List saved contexts; a star marks the selected one."""
    names, of_nats, current = contexts.names(), contexts.nats_names(), contexts.selected()
    if as_json:
        output.print_json({"contexts": names, "nats": of_nats, "selected": current})
    elif names_only:
        output.print_names([*names, *of_nats], False)
    elif not names and not of_nats:
        click.echo(f"No contexts. {_NONE}")
    else:
        rows = [
            [
                f"{name}*" if name == current else name,
                _about(name) or ("of the nats command" if name in of_nats else ""),
            ]
            for name in (*names, *of_nats)
        ]
        output.print_table("Known Contexts", ["Name", "Description"], rows)


_NONE = "Save one: jetlake -s nats://host:4222 context save NAME"


def _about(name: str) -> str:
    try:
        target = contexts.load_context(name)
    except ConfigError as error:
        return str(error)
    return contexts.plain(target).description


@context.command("select", example="jetlake context select prod")
@_name
@json_option
@pass_session
def select(session: Session, name: str | None, as_json: bool) -> None:
    """Use context NAME by default."""
    name = name or pick("context", [*contexts.names(), *contexts.nats_names()], _NONE)
    guarded(lambda: contexts.select_context(name), session)
    output.tell(f"Switched to context {name}", {"selected": name}, as_json)


@context.command("unselect", example="jetlake context unselect")
@json_option
def unselect(as_json: bool) -> None:
    """Use no context by default."""
    contexts.unselect_context()
    output.tell("No context is selected", {"selected": None}, as_json)


@context.command("previous", example="jetlake context previous")
@json_option
@pass_session
def previous(session: Session, as_json: bool) -> None:
    """Select the context that was selected before."""
    name = contexts.previous()
    if name is None:
        fail("no context was selected before. Select one: jetlake context select NAME", EXIT_USAGE)
    guarded(lambda: contexts.select_context(name), session)
    output.tell(f"Switched to context {name}", {"selected": name}, as_json)


@context.command("info", example="jetlake context info prod --connect")
@_name
@_connect
@json_option
@command
async def info(session: Session, name: str | None, connects: bool, as_json: bool) -> None:
    """Show context NAME, or the selected one; passwords are hidden."""
    name = name or contexts.selected()
    if not name:
        fail("no context is selected; give a name. List them: jetlake context ls", EXIT_USAGE)
    target = contexts.load_context(name)
    outcome = await _outcome(target, session.timeout_s) if connects else None
    if as_json:
        output.print_json({"context": name, **_hidden(target), **({"connection": outcome} if connects else {})})
    else:
        _print(name, target, outcome)
    if outcome not in (None, "OK"):
        raise SystemExit(EXIT_FAILED)


@context.command("validate", example="jetlake context validate --connect")
@_name
@_connect
@json_option
@command
async def validate(session: Session, name: str | None, connects: bool, as_json: bool) -> None:
    """Check context NAME, or all: whether the files it names can be read; exits with 1 when something is wrong."""
    found: dict[str, list[str]] = {}
    for one in [name] if name else [*contexts.names(), *contexts.nats_names()]:
        try:
            target = contexts.load_context(one)
        except ConfigError as error:
            found[one] = [str(error)]
            continue
        found[one] = [f"{setting}: can't read {path}" for setting, path in _files(target) if not _is_readable(path)]
        outcome = await _outcome(target, session.timeout_s) if connects and not found[one] else "OK"
        found[one] += [] if outcome == "OK" else [outcome]
    if as_json:
        output.print_json(found)
    for one, faults in {} if as_json else found.items():
        click.echo(f"{one}: {'; '.join(faults) or 'OK'}")
    if any(found.values()):
        raise SystemExit(EXIT_FAILED)


def _files(target: contexts.Target) -> list[tuple[str, str]]:
    plain = contexts.plain(target)
    return [
        (name, str(getattr(plain, name)))
        for name in ("creds", "nkey", "tls_ca", "tls_cert", "tls_key")
        if getattr(plain, name)
    ]


def _is_readable(path: str) -> bool:
    return os.access(platform.expand_user(path), os.R_OK)


async def _outcome(target: contexts.Target, timeout_s: float) -> str:
    """Connect once, and return the result: `OK` or the reason."""
    try:
        async with asyncio.timeout(timeout_s), await Session.of_target(target, timeout_s).connect():
            return "OK"
    except (JetlakeError, OSError, TimeoutError) as error:
        return str(error) or "no answer in time"


def _hidden(target: contexts.Target) -> dict[str, Any]:
    """Return the settings that are not empty, secrets as stars."""
    fields = {name: value for name, value in msgspec.structs.asdict(target).items() if value}
    fields["server"] = target.shown
    for name in ("password", "token"):
        if name in fields:
            fields[name] = "*" * 8
    return fields


_TITLES = {
    "description": "Description",
    "server": "Server URLs",
    "user": "Username",
    "password": "Password",
    "token": "Token",
    "creds": "Credentials",
    "nkey": "NKey",
    "tls_cert": "Certificate",
    "tls_key": "Key",
    "tls_ca": "CA",
    "tls_first": "TLS First",
    "api_prefix": "JS API Prefix",
    "domain": "JS Domain",
    "inbox_prefix": "Inbox Prefix",
}


def _print(name: str, target: contexts.Target, outcome: str | None) -> None:
    shown = _hidden(contexts.plain(target))
    files = {setting: "OK" if _is_readable(path) else "can't be read" for setting, path in _files(target)}
    rows = [
        (title, f"{shown[field]} ({files[field]})" if field in files else shown[field])
        for field, title in _TITLES.items()
        if field in shown
    ]
    where = [] if target.nats else [("Path", contexts.require(name))]
    connection = [("Connection", outcome)] if outcome is not None else []
    output.print_facts(f'NATS Configuration Context "{name}"', {"": [*rows, *where, *connection]})
    known = [variable for variables in contexts.ENVIRONMENT.values() for variable in variables]
    ambient = [variable for variable in known if variable in os.environ]
    if ambient:
        click.echo(f"\nThe environment overrides it: {', '.join(ambient)}")


@context.command("rm", example="jetlake context rm prod --force")
@_name
@force_option
@json_option
@pass_session
def remove(session: Session, name: str | None, force: bool, as_json: bool) -> None:
    """Delete context NAME."""
    name = name or pick("context", contexts.names(), _NONE)
    if name in contexts.nats_names():
        fail(f"{name} is a context of the nats command; delete it with: nats context rm {name}", EXIT_USAGE)
    guarded(lambda: contexts.require(name), session)
    confirm(f"Delete context {name}?", force)
    guarded(lambda: contexts.remove_context(name), session)
    output.tell(f"Deleted context {name}", {"removed": name}, as_json)
