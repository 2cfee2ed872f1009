"""Changes of key-value buckets and object stores."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import msgspec

from jetlake.client.streams.buckets import check_bucket
from jetlake.dashboard.changes.commands import jetlake, typed_text
from jetlake.dashboard.changes.prepared import Done, Prepared, arguments
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.errors import InvalidOptionError, KeyNotFoundError

__all__ = ["BUCKET_CHANGES"]


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
        before, revision = f"{len(entry.value):,} bytes, revision {entry.revision:,}", entry.revision
    except KeyNotFoundError:
        before, revision = "", 0

    async def run() -> Done:
        # What was shown is what is replaced: a value that somebody put meanwhile stays.
        number = await (bucket.update(wanted.key, value, revision) if revision else bucket.create(wanted.key, value))
        return Done(f"{wanted.key} is at revision {number:,}.")

    text = typed_text(value)
    file = "" if text is not None else "The value can't be typed: the command reads it from standard input."
    if revision:
        words = ["update", wanted.bucket, wanted.key, "-" if text is None else text, str(revision)]
    else:
        words = ["create", wanted.bucket, wanted.key, *([] if text is None else [text])]
    return Prepared(
        f"Put {wanted.key} in {wanted.bucket}",
        jetlake("kv", words[0], arguments=words[1:]),
        run,
        [(wanted.key, before, f"{len(value):,} bytes")],
        file=file,
    )


async def _remove(api: ServerApi, given: dict[str, Any], *, purge: bool) -> Prepared:
    wanted = arguments(_Key, given)
    bucket = await api.jetstream.key_value(check_bucket(wanted.bucket))

    async def run() -> Done:
        await (bucket.purge(wanted.key) if purge else bucket.delete(wanted.key))
        return Done(f"{wanted.key} was deleted" + (", with its history." if purge else "."))

    return Prepared(
        f"{'Purge' if purge else 'Delete'} {wanted.key} of {wanted.bucket}",
        jetlake("kv", "purge" if purge else "rm", "--force", arguments=[wanted.bucket, wanted.key]),
        run,
        [(wanted.key, "there", "deleted, with its history" if purge else "deleted; its history stays")],
        "The older values of the key don't come back." if purge else "",
    )


async def _delete(api: ServerApi, given: dict[str, Any]) -> Prepared:
    return await _remove(api, given, purge=False)


async def _purge(api: ServerApi, given: dict[str, Any]) -> Prepared:
    return await _remove(api, given, purge=True)


async def _delete_object(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Object, given)
    store = await api.jetstream.object_store(check_bucket(wanted.bucket))
    info = await store.info(wanted.name)

    async def run() -> Done:
        await store.delete(wanted.name)
        return Done(f"{wanted.name} was deleted.")

    return Prepared(
        f"Delete object {wanted.name} of {wanted.bucket}",
        jetlake("object", "rm", "--force", arguments=[wanted.bucket, wanted.name]),
        run,
        [("size", f"{info.size:,} bytes", "0")],
        "The object does not come back.",
    )


BUCKET_CHANGES = {
    "key.put": _put,
    "key.delete": _delete,
    "key.purge": _purge,
    "object.delete": _delete_object,
}
