"""Key-value buckets: their keys with the newest entry of each, and the history of one."""

from __future__ import annotations

from typing import Any

from jetlake.client.kv.entry import from_stored
from jetlake.client.streams.buckets import check_bucket
from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream
from jetlake.dashboard.browsing.messages import MessagePages, shown_message
from jetlake.dashboard.browsing.subjects import held_subjects, newest_messages
from jetlake.dashboard.watching.listing import Listing, listed
from jetlake.dashboard.watching.server_api import ServerApi

__all__ = ["KV_PREFIX", "key_history", "keys_page"]

KV_PREFIX = "KV_"
"""What the names of streams begin with that are key-value buckets."""
HISTORY_MAX = 64
"""A bucket keeps no more revisions of a key."""


async def keys_page(api: ServerApi, bucket: str, listing: Listing) -> dict[str, Any]:
    """Return one page of a bucket's keys, each with its newest entry, which may be the marker of a deleted key."""
    stream = await api.jetstream.stream(KV_PREFIX + check_bucket(bucket))
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
    stream = await api.jetstream.stream(KV_PREFIX + check_bucket(bucket))
    prefix, state = _prefix(stream, bucket), stream.cached_info.state
    pages = MessagePages(stream, prefix + key)
    found = await pages.before(state.last_seq + 1, HISTORY_MAX, max(state.first_seq, 1))
    return {"rows": [_shown(bucket, prefix, message) for message in reversed(found)]}


def _prefix(stream: Stream, bucket: str) -> str:
    """Return what the subjects begin with: a mirror holds those of its origin."""
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
