"""The schemas of an account's payloads, in a key-value bucket that every client can read.

Each schema is a key, each of its versions a revision. A version is added only if no other one was added since the
one it was compared with: the write names that revision.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, NamedTuple, cast

import msgspec

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.kv.bucket import KeyValue
from jetlake.client.kv.config import BucketOptions
from jetlake.client.payloads.schema import (
    BUCKET,
    VERSIONS_MAX,
    Compatibility,
    PayloadSchema,
    SchemaFormat,
    SchemaSet,
    decode_schema,
    schema_key,
    schema_text,
    shown_value,
)
from jetlake.client.publish.outgoing_message import PublishOptions
from jetlake.client.settings.wire_values import payload_bytes
from jetlake.client.streams.buckets import Buckets
from jetlake.client.streams.stream import stream_handle
from jetlake.errors import (
    ConfigError,
    InvalidOptionError,
    KeyNotFoundError,
    SchemaError,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from jetlake.protocol.subjects import is_valid_config, overlaps

__all__ = ["PayloadSchema", "Schemas"]

# A schema that another client adds is used after this time at the latest.
_FRESH_S = 5.0


class Shown(NamedTuple):
    """A payload as people read it by its schema."""

    title: str
    """The schema; empty when there is none."""
    text: str
    """The payload as JSON; empty when there is no schema, or the payload does not fit."""
    reason: str
    """Why the payload does not fit; empty when it does."""


class Schemas:
    """The schemas of an account's payloads; created by `JetStream.schemas`.

    ::

        await js.schemas().add("ORDERS", "orders.>", Path("order.json").read_text())
        await js.publish("orders.new", b'{"id": 1}', validate=True)
    """

    def __init__(self, api: ApiCaller, buckets: Buckets[KeyValue, BucketOptions]) -> None:
        self._api = api
        self._buckets = buckets
        self._known = SchemaSet()
        self._known_to: Any = None  # The state of the bucket that is known.
        self._fresh_until_s = float("-inf")
        self._loading = asyncio.Lock()

    def __repr__(self) -> str:
        return "<Schemas>"

    async def add(
        self,
        stream: str,
        subject: str,
        schema: str | bytes,
        *,
        format: SchemaFormat = "json",
        message: str = "",
        compatibility: Compatibility | None = None,
    ) -> PayloadSchema:
        """Add a schema, or the next version of one; an equal one adds no version.

        Args:
            stream: the stream that stores the payloads.
            subject: the subject, or pattern of subjects.
            schema: the text of a JSON Schema or an Avro schema, or a descriptor set of protoc.
            format: `json`, `avro` or `protobuf`.
            message: Protobuf: the full name of the message. Default: the last one of the last file.
            compatibility: what the next version must be: `backward`, `forward`, `full` or `none`. Default: as the
                version before; `backward` for the first one.

        Raises:
            ConfigError: it is no schema.
            SchemaError: the compatibility of the version before forbids it, or another client adds one now.
            StreamNotFoundError: there is no such stream.
        """
        bucket, revision, before, given = await self._compared(stream, subject, schema, format, message, compatibility)
        if before is not None and before.version == given.version:
            return before
        if bucket is None:
            about = "schemas of payloads, by stream and subject"
            bucket = await self._buckets.create(BUCKET, {"history": VERSIONS_MAX, "description": about})
        key, value = schema_key(stream, subject), msgspec.json.encode(given)
        try:
            if before is None:
                await bucket.create(key, value)
            else:
                await bucket.update(key, value, revision)
        except WrongLastSequenceError:
            reason = f"another client has added a schema of {subject} meanwhile: look at it, and try again"
            raise SchemaError(reason) from None
        self._fresh_until_s = float("-inf")
        return given

    async def compared(
        self,
        stream: str,
        subject: str,
        schema: str | bytes,
        *,
        format: SchemaFormat = "json",
        message: str = "",
    ) -> tuple[PayloadSchema | None, PayloadSchema]:
        """Return the newest schema, if there is one, and the next version that `add` would store; adds nothing.

        Raises:
            JetlakeError: as `add` would.
        """
        _, _, before, given = await self._compared(stream, subject, schema, format, message, None)
        return before, given

    async def _compared(
        self,
        stream: str,
        subject: str,
        schema: str | bytes,
        format_name: SchemaFormat,
        message: str,
        compatibility: Compatibility | None,
    ) -> tuple[KeyValue | None, int, PayloadSchema | None, PayloadSchema]:
        """Return the bucket, the newest schema with its revision, and the given one, with its version if it is new."""
        config = (await stream_handle(self._api, stream).info()).config
        if not is_valid_config(subject.encode()):
            raise InvalidOptionError(f"{subject!r} is not a valid subject or pattern")
        if config.subjects and not any(overlaps(subject.encode(), own.encode()) for own in config.subjects):
            captured = ", ".join(config.subjects)
            raise InvalidOptionError(f"stream {stream} captures no subject of {subject}, but {captured}")
        bucket, entry = None, None
        with contextlib.suppress(StreamNotFoundError):
            bucket = await self._buckets.get(BUCKET)
            entry = await bucket.get(schema_key(stream, subject), leader=True, default=None)
        before = decode_schema(entry.value) if entry is not None else None
        given = PayloadSchema(
            stream=stream,
            subject=subject,
            version=before.version + 1 if before is not None else 1,
            format=format_name,
            schema=schema_text(format_name, schema),
            message=message,
            compatibility=compatibility or (before.compatibility if before is not None else "backward"),
        )
        given.check_schema()
        if before is not None:
            if msgspec.structs.replace(given, version=before.version) == before:
                given = before
            else:
                before.check_successor(given)
        return bucket, entry.revision if entry is not None else 0, before, given

    async def get(self, stream: str, subject: str, *, version: int | None = None) -> PayloadSchema:
        """Return the newest schema of a subject, or of the most specific pattern that matches it.

        Args:
            version: this version of exactly that entry.

        Raises:
            SchemaError: there is none.
        """
        await self.refresh(at_once=True)
        found = self._known.find(subject, stream)
        if found is not None and version not in (None, found.version):
            found = next((one for one in await self.versions(stream, found.subject) if one.version == version), None)
        if found is None:
            wanted = f"version {version} of a schema" if version is not None else "schema"
            raise SchemaError(f"stream {stream} has no {wanted} of {subject}: see jetlake schema ls {stream}")
        return found

    async def versions(self, stream: str, subject: str) -> list[PayloadSchema]:
        """Return the versions of an entry that are kept, at most 64, oldest first."""
        try:
            bucket = await self._buckets.get(BUCKET)
            entries = await bucket.history(schema_key(stream, subject))
        except (StreamNotFoundError, KeyNotFoundError):
            return []
        return [decode_schema(entry.value) for entry in entries if not entry.is_deleted]

    async def list(self, stream: str = "") -> list[PayloadSchema]:
        """Return the newest version of every schema, of one stream or of all, by stream and subject."""
        await self.refresh(at_once=True)
        found = [one for one in self._known if stream in ("", one.stream)]
        return sorted(found, key=lambda one: (one.stream, one.subject))

    async def check(self, subject: str, payload: bytes) -> None:
        """Check a payload against the schema of its subject, as `publish` with `validate` does.

        Schemas are kept for five seconds: after this time at the latest a new one is used.

        Raises:
            SchemaError: the subject has no schema.
            SchemaMismatchError: the payload does not fit.
        """
        (await self.refresh()).check(subject, payload)

    async def shown(self, subject: str, payload: bytes, stream: str = "") -> Shown:
        """Return a payload decoded with its schema.

        Raises:
            ConfigError: what reads such payloads is not installed.
        """
        known = await self.refresh()
        schema = known.find(subject, stream) or known.find(subject)  # a mirror has the subjects of its origin
        if schema is None:
            return Shown("", "", "")
        title = f"{schema.subject} version {schema.version} ({schema.format})"
        try:
            return Shown(title, shown_value(known.read(schema, payload)).decode(), "")
        except ConfigError:
            raise
        except ValueError as error:
            return Shown(title, "", str(error))

    async def validated(self, subject: str, payload: bytes, options: PublishOptions) -> PublishOptions:
        """Check a payload, and return the options of its message without `validate`.

        Raises:
            SchemaError: as in `check`.
        """
        # Bytes are taken as they are; what else a payload may be is checked when the message is made.
        await self.check(subject, payload_bytes(payload))
        return cast("PublishOptions", {name: value for name, value in options.items() if name != "validate"})

    async def refresh(self, *, at_once: bool = False) -> SchemaSet:
        """Return the schemas, at most five seconds old."""
        now_s = asyncio.get_running_loop().time
        if not at_once and now_s() < self._fresh_until_s:
            return self._known
        async with self._loading:
            if at_once or now_s() >= self._fresh_until_s:
                await self._load()
                self._fresh_until_s = now_s() + _FRESH_S
            return self._known

    async def _load(self) -> None:
        try:
            bucket = await self._buckets.get(BUCKET)
        except StreamNotFoundError:
            self._known, self._known_to = SchemaSet(), None
            return
        state = bucket.stream.cached_info.state
        mark = (bucket.stream.cached_info.created, state.last_seq, state.messages)
        if mark == self._known_to:
            return
        async with bucket.watch(ignore_deletes=True) as watch:
            entries = await watch.current()
        self._known = SchemaSet(decode_schema(entry.value) for entry in entries)
        self._known_to = mark
