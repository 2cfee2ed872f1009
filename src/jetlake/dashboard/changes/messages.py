"""Changes that publish or remove messages."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import msgspec

from jetlake.dashboard.changes.commands import jetlake, typed_text
from jetlake.dashboard.changes.prepared import Done, Prepared, arguments
from jetlake.dashboard.watching.server_api import ServerApi, checked_name
from jetlake.errors import InvalidOptionError
from jetlake.protocol.subjects import is_valid_publish

__all__ = ["MESSAGE_CHANGES"]


class _Publish(msgspec.Struct, forbid_unknown_fields=True):
    subject: str
    payload: str = ""
    """In base64: any bytes."""
    headers: list[tuple[str, str]] = []


class _Again(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    sequence: int


class _Delete(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    sequence: int


def _prepared(api: ServerApi, subject: str, payload: bytes, headers: list[tuple[str, str]]) -> Prepared:
    if not is_valid_publish(subject.encode()):
        raise InvalidOptionError(f"{subject[:64]!r} is not a subject to publish to")
    by_name: dict[str, str | list[str]] = {}
    for name, value in headers:
        known = by_name.get(name)
        by_name[name] = value if known is None else [*([known] if isinstance(known, str) else known), value]

    async def run() -> Done:
        ack = await api.jetstream.publish(subject, payload, headers=by_name or None)
        return Done(f"Stored in {ack.stream} at sequence {ack.seq:,}" + (", as a duplicate." if ack.duplicate else "."))

    words = [word for name, value in headers for word in ("-H", f"{name}:{value}")]
    body = typed_text(payload)
    file = "" if body is not None else "The payload can't be typed: the command reads it from standard input."
    return Prepared(
        f"Publish to {subject}",
        jetlake("pub", "--jetstream", *words, arguments=[subject, *([] if body is None else [body])]),
        run,
        [("payload", "", f"{len(payload):,} bytes"), *((name, "", value) for name, value in headers)],
        file=file,
    )


async def _publish(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Publish, given)
    try:
        payload = b64decode(wanted.payload, validate=True)
    except ValueError:
        raise InvalidOptionError("the payload is not base64") from None
    return _prepared(api, wanted.subject, payload, wanted.headers)


async def _publish_again(api: ServerApi, given: dict[str, Any]) -> Prepared:
    """Return the whole message as it is stored, also when the page shows only its beginning."""
    wanted = arguments(_Again, given)
    stream = await api.jetstream.stream(checked_name(wanted.stream))
    message = await stream.get(wanted.sequence, direct=False)
    # What told the server how to treat the first one would make it refuse or drop the second.
    headers = [(name, value) for name, value in message.headers.items() if not name.lower().startswith("nats-")]
    return _prepared(api, message.subject, message.payload, headers)


async def _delete(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Delete, given)
    stream = await api.jetstream.stream(checked_name(wanted.stream))
    message = await stream.get(wanted.sequence, direct=False)

    async def run() -> Done:
        await stream.delete_message(wanted.sequence)
        return Done(f"Message {wanted.sequence:,} of {stream.name} was deleted.")

    return Prepared(
        f"Delete message {wanted.sequence:,} of {stream.name}",
        jetlake("stream", "rmm", stream.name, str(wanted.sequence), "--force"),
        run,
        [("subject", message.subject, ""), ("payload", f"{len(message.payload):,} bytes", "overwritten")],
        "The message does not come back.",
    )


MESSAGE_CHANGES = {
    "message.publish": _publish,
    "message.again": _publish_again,
    "message.delete": _delete,
}
