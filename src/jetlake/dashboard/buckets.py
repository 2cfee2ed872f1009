"""Key-value buckets and object stores: their keys, revisions, objects and contents; putting and deleting them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from jetlake.client.kv.entry import from_stored
from jetlake.client.objects.info import ObjectInfo
from jetlake.client.objects.store import ObjectStore
from jetlake.client.streams.buckets import check_bucket
from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream
from jetlake.dashboard.changes import Done, Prepared, arguments, jetlake, size_word, typed_text
from jetlake.dashboard.messages import MessagePages, held_subjects, newest_messages, shown_message
from jetlake.dashboard.viewers import Viewers
from jetlake.dashboard.views import KV_PREFIX, listing_of
from jetlake.dashboard.watching.listing import Listing, listed
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.dashboard.web import json_answer
from jetlake.errors import InvalidOptionError, KeyNotFoundError, ObjectNotFoundError, StreamNotFoundError
from jetlake.model.config_text import duration_text, size_text
from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.encoding.times import format_time

HISTORY_MAX = 64
"""A bucket keeps no more revisions of a key."""


async def keys_page(api: ServerApi, bucket: str, listing: Listing) -> dict[str, Any]:
    """Return one page of a bucket's keys, each with its newest entry, which may be the marker of a deleted key."""
    stream = await _bucket_stream(api, bucket)
    prefix = _prefix(stream, bucket)
    subjects, total = await held_subjects(api, stream.name, f"{prefix}>")
    page = listed(
        subjects, listing, search=lambda one: one[len(prefix) :], orders={}, shown=lambda one: {"subject": one}
    )
    entries = await newest_messages(stream, (row["subject"] for row in page["rows"]))
    rows = [_shown(bucket, prefix, message) for message in entries]
    return {**page, "rows": rows, "total": total, "stream": stream.name, "status": _status(stream)}


async def key_history(api: ServerApi, bucket: str, key: str) -> dict[str, Any]:
    """Return the revisions of a key, newest first."""
    stream = await _bucket_stream(api, bucket)
    prefix, state = _prefix(stream, bucket), stream.cached_info.state
    pages = MessagePages(stream, prefix + key)
    found = await pages.before(state.last_seq + 1, HISTORY_MAX, max(state.first_seq, 1))
    return {"rows": [_shown(bucket, prefix, message) for message in reversed(found)]}


async def _bucket_stream(api: ServerApi, bucket: str) -> Stream:
    """Return the stream of a bucket.

    Raises:
        InvalidOptionError: there is no such bucket.
    """
    try:
        return await api.jetstream.stream(KV_PREFIX + check_bucket(bucket))
    except StreamNotFoundError:
        raise InvalidOptionError(f"Key-value bucket {bucket} not found; it may have been deleted.") from None


async def _store(api: ServerApi, name: str) -> ObjectStore:
    """Return an object store.

    Raises:
        InvalidOptionError: there is no such store.
    """
    try:
        return await api.jetstream.object_store(check_bucket(name))
    except StreamNotFoundError:
        raise InvalidOptionError(f"Object store {name} not found; it may have been deleted.") from None


def _prefix(stream: Stream, bucket: str) -> str:
    """Return what the subjects begin with: a mirror holds its origin's subjects."""
    mirror = stream.config.mirror
    return f"$KV.{bucket if mirror is None else mirror.name.removeprefix(KV_PREFIX)}."


def _shown(bucket: str, prefix: str, message: StoredMessage) -> dict[str, Any]:
    key = message.subject.removeprefix(prefix)
    entry = from_stored(bucket, key, message)
    return {**shown_message(message), "key": key, "revision": entry.revision, "operation": entry.operation.value}


def _status(stream: Stream) -> dict[str, Any]:
    config, state = stream.config, stream.cached_info.state
    return {
        "values": state.messages,
        "bytes": state.bytes,
        "history": config.max_msgs_per_subject,
        "ttl_s": config.max_age / 1e9,
        "storage": config.storage.value,
        "replicas": config.num_replicas,
        "mirror": "" if config.mirror is None else config.mirror.name,
    }


async def objects_page(api: ServerApi, bucket: str, listing: Listing) -> dict[str, Any]:
    """Return one page of a store's objects."""
    store = await _store(api, bucket)
    infos = await store.list()
    orders = {"name": lambda one: one.name, "size": lambda one: one.size, "time": lambda one: one.modified_ns}
    return listed(
        infos, listing, search=lambda one: f"{one.name} {one.description}", orders=orders, shown=_shown_object
    )


def _shown_object(info: ObjectInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "size": info.size,
        "chunks": info.chunks,
        "digest": info.digest,
        "description": info.description,
        "metadata": info.metadata,
        "headers": info.headers,
        "time": format_time(info.modified_ns),
        "link": "" if info.link is None else f"{info.link.bucket}/{info.link.name}",
    }


async def object_content(api: ServerApi, bucket: str, name: str) -> AsyncIterator[bytes]:
    """Return the pieces of an object's content, as they are read: an object may be larger than memory.

    Raises:
        ObjectNotFoundError: there is none; raised before the first piece.
    """
    store = await _store(api, bucket)
    await store.info(name)

    async def pieces() -> AsyncIterator[bytes]:
        async with store.open(name) as reader:
            async for piece in reader:
                yield piece

    return pieces()


class _Put(msgspec.Struct, forbid_unknown_fields=True):
    bucket: str
    key: str
    value: str
    """In base64: any bytes."""


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    bucket: str
    key: str


class _Object(msgspec.Struct, forbid_unknown_fields=True):
    bucket: str
    name: str


async def _put(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Put, given)
    try:
        value = b64decode(wanted.value, validate=True)
    except ValueError:
        raise InvalidOptionError("the value is not base64") from None
    bucket = await api.jetstream.key_value(check_bucket(wanted.bucket))
    try:
        entry = await bucket.get(wanted.key)
        before, revision = f"{size_text(len(entry.value))}, revision {entry.revision:,}", entry.revision
    except KeyNotFoundError:
        before, revision = "", 0

    async def run() -> Done:
        # Only the shown revision is replaced: a newer value stays.
        number = await (bucket.update(wanted.key, value, revision) if revision else bucket.create(wanted.key, value))
        return Done(f"Stored {wanted.key} as revision {number:,}.")

    text = typed_text(value)
    file = "" if text is not None else "The value is not text: the command reads it from standard input."
    if revision:
        words = ["update", wanted.bucket, wanted.key, "-" if text is None else text, str(revision)]
    else:
        words = ["create", wanted.bucket, wanted.key, *([] if text is None else [text])]
    return Prepared(
        f"Put {wanted.key} in {wanted.bucket}",
        jetlake("kv", words[0], arguments=words[1:]),
        run,
        [(wanted.key, before, size_text(len(value)))],
        file=file,
    )


async def _remove(api: ServerApi, given: dict[str, Any], *, purge: bool) -> Prepared:
    wanted = arguments(_Key, given)
    bucket = await api.jetstream.key_value(check_bucket(wanted.bucket))

    async def run() -> Done:
        await (bucket.purge(wanted.key) if purge else bucket.delete(wanted.key))
        return Done(f"Deleted {wanted.key}" + (" and its history." if purge else "."))

    return Prepared(
        f"{'Purge' if purge else 'Delete'} {wanted.key} of {wanted.bucket}",
        jetlake("kv", "purge" if purge else "rm", "--force", arguments=[wanted.bucket, wanted.key]),
        run,
        [(wanted.key, "exists", "deleted with its history" if purge else "deleted; history kept")],
        "Earlier values of the key can't be recovered." if purge else "",
    )


async def _delete(api: ServerApi, given: dict[str, Any]) -> Prepared:
    return await _remove(api, given, purge=False)


async def _purge(api: ServerApi, given: dict[str, Any]) -> Prepared:
    return await _remove(api, given, purge=True)


async def _delete_object(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Object, given)
    store = await _store(api, wanted.bucket)
    info = await store.info(wanted.name)

    async def run() -> Done:
        await store.delete(wanted.name)
        return Done(f"Deleted object {wanted.name}.")

    return Prepared(
        f"Delete object {wanted.name} of {wanted.bucket}",
        jetlake("object", "rm", "--force", arguments=[wanted.bucket, wanted.name]),
        run,
        [("size", size_text(info.size), "none")],
        "The object can't be recovered.",
    )


class _Bucket(msgspec.Struct, forbid_unknown_fields=True):
    bucket: str
    history: Annotated[int, msgspec.Meta(ge=1, le=HISTORY_MAX)] = 1
    ttl: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Seconds; 0 = no limit."""
    max_bytes: int = -1
    storage: Literal["file", "memory"] = "file"
    description: str = ""


class _Store(msgspec.Struct, forbid_unknown_fields=True):
    bucket: str
    ttl: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Seconds; 0 = no limit."""
    max_bytes: int = -1
    storage: Literal["file", "memory"] = "file"
    description: str = ""


class _Upload(msgspec.Struct, forbid_unknown_fields=True):
    bucket: str
    name: str
    content: str
    """In base64: any bytes."""


async def _create_bucket(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Bucket, given)
    name, options = check_bucket(wanted.bucket), _chosen(wanted)

    async def run() -> Done:
        await api.jetstream.create_key_value(name, **options)
        return Done(f"Created bucket {name}.")

    words = [] if wanted.history == 1 else ["--history", str(wanted.history)]
    return Prepared(
        f"Create bucket {name}",
        jetlake("kv", "add", *words, *_bucket_flags(wanted), arguments=[name]),
        run,
        [("history", "", str(wanted.history)), *_bucket_changes(wanted)],
    )


async def _create_store(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Store, given)
    name, options = check_bucket(wanted.bucket), _chosen(wanted)

    async def run() -> Done:
        await api.jetstream.create_object_store(name, **options)
        return Done(f"Created object store {name}.")

    return Prepared(
        f"Create object store {name}",
        jetlake("object", "add", *_bucket_flags(wanted), arguments=[name]),
        run,
        _bucket_changes(wanted),
    )


def _chosen(wanted: _Bucket | _Store) -> dict[str, Any]:
    """Return the options that say something else than the default."""
    options = {name: value for name, value in msgspec.structs.asdict(wanted).items() if name != "bucket"}
    return {name: value for name, value in options.items() if value not in (0, -1, "")}


def _bucket_flags(wanted: _Bucket | _Store) -> list[str]:
    flags = ["--storage", wanted.storage] if wanted.storage != "file" else []
    if wanted.ttl:
        flags += ["--ttl", duration_text(nanoseconds(wanted.ttl))]
    if wanted.max_bytes > 0:
        flags += ["--max-bucket-size", size_word(wanted.max_bytes)]
    return [*flags, "--description", wanted.description] if wanted.description else flags


def _bucket_changes(wanted: _Bucket | _Store) -> list[tuple[str, str, str]]:
    changes = [
        ("time to live", "", duration_text(nanoseconds(wanted.ttl)) if wanted.ttl else "unlimited"),
        ("maximum size", "", size_text(wanted.max_bytes) if wanted.max_bytes > 0 else "unlimited"),
        ("storage", "", wanted.storage),
    ]
    return [*changes, ("description", "", wanted.description)] if wanted.description else changes


async def _upload(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Upload, given)
    store = await _store(api, wanted.bucket)
    try:
        content = b64decode(wanted.content, validate=True)
    except ValueError:
        raise InvalidOptionError("the content is not base64") from None
    if not wanted.name:
        raise InvalidOptionError("an object needs a name")
    try:
        before = await store.info(wanted.name)
    except ObjectNotFoundError:
        before = None

    async def run() -> Done:
        info = await store.put(wanted.name, content)
        return Done(f"Stored object {wanted.name}: {size_text(info.size)}.")

    return Prepared(
        f"Upload {wanted.name} to {wanted.bucket}",
        jetlake("object", "put", "--name", wanted.name, "--force", arguments=[wanted.bucket, wanted.name]),
        run,
        [("size", "" if before is None else size_text(before.size), size_text(len(content)))],
        "" if before is None else "The existing content is replaced, and can't be recovered.",
    )


BUCKET_CHANGES = {
    "bucket.create": _create_bucket,
    "store.create": _create_store,
    "object.put": _upload,
    "key.put": _put,
    "key.delete": _delete,
    "key.purge": _purge,
    "object.delete": _delete_object,
}


def bucket_routes(viewers: Viewers) -> list[Route]:
    """Make the routes."""

    async def keys(request: Request) -> Response:
        api = (await viewers.viewer(request)).api
        return json_answer(await keys_page(api, request.path_params["bucket"], listing_of(request)))

    async def history(request: Request) -> Response:
        api = (await viewers.viewer(request)).api
        return json_answer(await key_history(api, request.path_params["bucket"], request.query_params.get("key", "")))

    async def objects(request: Request) -> Response:
        api = (await viewers.viewer(request)).api
        return json_answer(await objects_page(api, request.path_params["bucket"], listing_of(request)))

    async def content(request: Request) -> Response:
        api, name = (await viewers.viewer(request)).api, request.query_params.get("name", "")
        chunks = await object_content(api, request.path_params["bucket"], name)
        # Always a download: an object may be an HTML page written by someone else.
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(name.rpartition('/')[2], safe='')}"}
        return StreamingResponse(chunks, media_type="application/octet-stream", headers=headers)

    return [
        Route("/api/buckets/{bucket}/keys", keys),
        Route("/api/buckets/{bucket}/history", history),
        Route("/api/object-stores/{bucket}/objects", objects),
        Route("/api/object-stores/{bucket}/content", content),
    ]
