"""`jetlake schema search`, `info`, `validate` and `req`: the JSON Schemas of requests, replies, events and services."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE, Session, command, fail, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.errors import DecodeError
from jetlake.model.api import API_ROWS
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.codec import decode, decode_strict
from jetlake.model.events import EVENT_TYPES
from jetlake.model.service import ServiceIdentity, ServiceInfo, ServiceStats
from jetlake.model.stream import StreamConfig

_API = "io.nats.jetstream.api.v1."
_SERVICE = "io.nats.micro.v1."


@cache
def _types() -> dict[str, type[Any]]:
    """Return the types by the names that their values carry, or that JetStream's own schemas have."""
    found: dict[str, type[Any]] = {
        f"{_API}stream_configuration": StreamConfig,
        f"{_API}consumer_configuration": ConsumerConfig,
        f"{_SERVICE}info_response": ServiceInfo,
        f"{_SERVICE}ping_response": ServiceIdentity,
        f"{_SERVICE}stats_response": ServiceStats,
    }
    for row in API_ROWS:
        reply = "" if row.reply is None else str(row.reply.__struct_config__.tag)
        if row.reply is not None:
            found[reply] = row.reply
        if row.request is not None:
            name = reply.replace("_response", "_request") if reply else _API + _WITHOUT_REPLY[row.verb]
            found[name] = row.request
    found.update(EVENT_TYPES)
    return dict(sorted(found.items()))


_WITHOUT_REPLY = {"CONSUMER.MSG.NEXT": "consumer_getnext_request", "DIRECT.GET": "stream_msg_get_direct_request"}
"""Names of requests that messages answer."""


def _type_of(name: str) -> type[Any]:
    found = _types().get(name) or _types().get(_API + name)
    if found is None:
        fail(f"no schema {name!r}. List them: jetlake schema search", EXIT_USAGE)
    return found


@click.command("search", cls=SharedCommand, example="jetlake schema search consumer")
@click.argument("pattern", metavar="[REGEX]", default="")
@json_option
def search(pattern: str, as_json: bool) -> None:
    """List the schemas of JetStream's requests and replies, of events and services, whose names match REGEX."""
    try:
        fits = re.compile(pattern)
    except re.error as error:
        fail(f"{pattern}: {error}", EXIT_USAGE)
    found = [name for name in _types() if fits.search(name)]
    if not found and not as_json:
        fail(f"no schemas match {pattern!r}")
    output.print_names(found, as_json)


@click.command("info", cls=SharedCommand, example="jetlake schema info io.nats.jetstream.api.v1.stream_configuration")
@click.argument("name", metavar="SCHEMA")
def show(name: str) -> None:
    """Print SCHEMA, a name that search lists, as JSON Schema."""
    output.print_json(_plain(msgspec.json.schema(_type_of(name))))


def _plain(schema: Any) -> Any:
    """Return a schema for readers elsewhere: the first paragraph of each description, patterns as in JavaScript."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _plain(value) for key, value in schema.items()}
    if isinstance(plain.get("description"), str):
        plain["description"] = plain["description"].partition("\n\n")[0]
    if isinstance(plain.get("pattern"), str):
        plain["pattern"] = plain["pattern"].replace("\\Z", "$")
    return plain


@click.command(
    "validate",
    cls=SharedCommand,
    example="jetlake schema validate io.nats.jetstream.api.v1.stream_configuration orders.json",
)
@click.argument("name", metavar="SCHEMA")
@click.argument("file", type=click.Path(dir_okay=False))
@json_option
def validate(name: str, file: str, as_json: bool) -> None:
    """Check whether the JSON in FILE fits SCHEMA; exits with 1 when it does not."""
    kind = _type_of(name)
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    try:
        decode_strict(kind, content)
        reason = ""
    except DecodeError as error:
        reason = str(error)
    _report(file, name, reason, as_json)


def _report(what: str, name: str, reason: str, as_json: bool) -> None:
    if as_json:
        output.print_json({"schema": name, "valid": not reason, "reason": reason})
    else:
        click.echo(f"{what} does not fit {name}: {reason}" if reason else f"{what} fits {name}")
    if reason:
        raise SystemExit(EXIT_FAILED)


@click.command("req", cls=SharedCommand, example="jetlake schema req '$JS.API.STREAM.INFO.ORDERS'")
@click.argument("subject")
@click.argument("body", required=False)
@json_option
@command
async def request(session: Session, subject: str, body: str | None, as_json: bool) -> None:
    """Send BODY to SUBJECT, print the reply, and check it against the schema of its type."""
    content = (body or "").encode(errors="surrogateescape")
    async with await session.connect() as client:
        reply = (await client.request(subject, content, timeout=session.timeout_s)).data
    if not as_json:
        click.echo(reply)
    try:
        fields: dict[str, Any] = msgspec.json.decode(reply, type=dict)
    except msgspec.DecodeError:
        fail("the reply is not a JSON object")
    if isinstance(fields.get("error"), dict):
        fail(f"{subject}: {fields['error'].get('description')} ({fields['error'].get('err_code')})")
    name = str(fields.get("type", ""))
    kind = _types().get(name)
    if kind is None:
        fail(f"no schema for replies of type {name!r}" if name else "the reply has no type")
    try:
        decode(kind, reply)  # Later servers may add fields.
        reason = ""
    except DecodeError as error:
        reason = str(error)
    _report("The reply", name, reason, as_json)


API_SCHEMA_COMMANDS: tuple[click.Command, ...] = (search, show, validate, request)
