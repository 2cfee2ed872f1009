"""`jetlake schema …`: the schemas of payloads, which are in the key-value bucket `schemas`."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jetlake.cli import output
from jetlake.cli.commands.api_schemas import API_SCHEMA_COMMANDS
from jetlake.cli.name_completion import stream_names
from jetlake.cli.session import EXIT_FAILED, Session, command, json_option
from jetlake.cli.shared_options import SharedGroup
from jetlake.errors import ConfigError, MessageNotFoundError

if TYPE_CHECKING:
    from jetlake.client import JetStream
    from jetlake.client.payloads.schema import PayloadSchema

_SUFFIXES = {".json": "json", ".avsc": "avro", ".pb": "protobuf", ".binpb": "protobuf", ".desc": "protobuf"}
_SHOWN_MAX = 10


@click.group(cls=SharedGroup)
def schema() -> None:
    """Keep schemas of payloads, and check messages against them; show the schemas of the JetStream API.

    A schema belongs to a stream and a subject, which may be a pattern; the most specific pattern applies. Schemas are
    stored in the key-value bucket "schemas", which any client can read: each key is a schema, each revision a version.
    """


_stream = click.argument("stream", shell_complete=stream_names)
_subject = click.argument("subject")
_format = click.option(
    "--format",
    "format_name",
    type=click.Choice(["json", "avro", "protobuf"]),
    help="JSON Schema, Avro schema or Protobuf descriptor set.  [default: by FILE's suffix .json, .avsc, .pb]",
)
_message = click.option("--message", default="", metavar="NAME", help="Protobuf: the message in the descriptor set.")
_file_type = click.Path(path_type=Path)


@schema.command("add", example="jetlake schema add ORDERS 'orders.>' order.json")
@_stream
@_subject
@click.argument("file", type=_file_type)
@_format
@_message
@click.option(
    "--compatibility",
    type=click.Choice(["backward", "forward", "full", "none"]),
    help="What the next version must be.  [default: as the version before, backward for the first]",
)
@json_option
@command
async def add(
    session: Session,
    stream: str,
    subject: str,
    file: Path,
    format_name: str | None,
    message: str,
    compatibility: Any,
    as_json: bool,
) -> None:
    """Add the schema in FILE, or the next version of it, for messages of STREAM on SUBJECT.

    Backward: the new version reads the payloads of the one before. Forward: the one before reads payloads of the new
    version. Full: both.
    """
    kind, content = _content(file, format_name)
    async with session.jetstream() as js:
        added = await js.schemas().add(
            stream, subject, content, format=kind, message=message, compatibility=compatibility
        )
    facts = {"stream": stream, "subject": subject, "version": added.version, "format": added.format}
    output.tell(
        f"Version {added.version} of the schema of {subject} in stream {stream}: {added.format}", facts, as_json
    )


def _content(file: Path, format_name: str | None) -> tuple[Any, bytes]:
    kind = format_name or _SUFFIXES.get(file.suffix.lower())
    if kind is None:
        raise ConfigError(f"the format of {file} is not known by its suffix: name it with --format")
    try:
        return kind, file.read_bytes()
    except OSError as error:
        raise ConfigError(f"can't read {file}: {error.strerror}") from None


@schema.command("get", example="jetlake schema get ORDERS 'orders.>' --version 1")
@_stream
@_subject
@click.option("--version", type=click.IntRange(1), metavar="N", help="This version.  [default: the newest]")
@click.option("--raw", is_flag=True, help="Print the schema alone, a descriptor set as its bytes.")
@json_option
@command
async def get(session: Session, stream: str, subject: str, version: int | None, raw: bool, as_json: bool) -> None:
    """Show the schema that applies to SUBJECT in STREAM."""
    async with session.jetstream() as js:
        found = await js.schemas().get(stream, subject, version=version)
    if as_json:
        output.print_json(found)
    elif raw and found.format == "protobuf":
        click.echo(base64.b64decode(found.schema), nl=False)
    elif raw:
        click.echo(found.schema)
    else:
        facts = [
            ("Version", found.version),
            ("Format", found.format),
            ("Message", found.message or None),
            ("Compatibility", found.compatibility),
        ]
        output.print_facts(f"Schema of {found.subject} in stream {stream}", {"": facts})
        click.echo(f"\n{found.schema}")


@schema.command("ls", example="jetlake schema ls ORDERS")
@click.argument("stream", required=False, shell_complete=stream_names)
@json_option
@command
async def list_schemas(session: Session, stream: str | None, as_json: bool) -> None:
    """List the schemas of STREAM, or of all streams."""
    async with session.jetstream() as js:
        found = await js.schemas().list(stream or "")
    if as_json:
        output.print_json(found)
        return
    rows = [(one.stream, one.subject, str(one.version), one.format, one.compatibility) for one in found]
    if not rows:
        click.echo("No schemas", err=True)
        return
    output.print_table("Schemas", ["Stream", "Subject", "Version", "Format", "Compatibility"], rows)


@schema.command("check", example="jetlake schema check ORDERS 'orders.>' order-v2.json")
@_stream
@_subject
@click.argument("file", required=False, type=_file_type)
@_format
@_message
@json_option
@command
async def check(
    session: Session,
    stream: str,
    subject: str,
    file: Path | None,
    format_name: str | None,
    message: str,
    as_json: bool,
) -> None:
    """Check messages of STREAM on SUBJECT against their schema; with FILE, check that it may be the next version.

    Exits with 1 if something does not fit. Adds and changes nothing.
    """
    async with session.jetstream() as js:
        if file is None:
            await _check_messages(js, stream, subject, as_json)
            return
        kind, content = _content(file, format_name)
        before, checked = await js.schemas().compared(stream, subject, content, format=kind, message=message)
    facts = {"stream": stream, "subject": subject, "version": checked.version, "compatible": True}
    what = "may be the first schema" if before is None else f"may follow version {before.version} of the schema"
    output.tell(f"{file} {what} of {subject} in stream {stream}", facts, as_json)


async def _check_messages(js: JetStream, stream: str, subject: str, as_json: bool) -> None:
    schemas = await js.schemas().refresh(at_once=True)
    handle = await js.stream(stream)
    checked, misfits, without = 0, 0, 0
    shown: list[dict[str, Any]] = []
    sequence, last = 1, handle.cached_info.state.last_seq
    while sequence <= last:
        try:
            message = await handle.get(sequence, next_by_subject=subject, direct=False)
        except MessageNotFoundError:
            break
        sequence = message.sequence + 1
        entry: PayloadSchema | None = schemas.find(message.subject, stream)
        if entry is None:
            without += 1
            continue
        checked += 1
        try:
            schemas.read(entry, message.payload)
        except ConfigError:
            raise
        except ValueError as error:
            misfits += 1
            if len(shown) < _SHOWN_MAX:
                shown.append({"seq": message.sequence, "subject": message.subject, "reason": str(error)})
    facts = {"checked": checked, "misfits": misfits, "without_schema": without, "first_misfits": shown}
    if as_json:
        output.print_json(facts)
    else:
        for one in shown:
            click.echo(f"{stream}#{one['seq']} {one['subject']}: {one['reason']}")
        more = f"; {output.plural(without, 'message')} without a schema" if without else ""
        click.echo(f"Checked {output.plural(checked, 'message')}: {misfits} do not fit{more}")
    if misfits:
        raise SystemExit(EXIT_FAILED)


for _command in API_SCHEMA_COMMANDS:
    schema.add_command(_command)
