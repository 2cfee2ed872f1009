"""The handlers of the account and stream API."""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from jetlake.errors import ConfigError, api_error
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.times import format_time, parse_time
from jetlake.model.enums import ActionKind, StorageType
from jetlake.model.replies import (
    AccountInfoReply,
    MessageDeleteReply,
    MessageGetReply,
    StoredMessage,
    StreamCreateReply,
    StreamDeleteReply,
    StreamInfoReply,
    StreamListReply,
    StreamNamesReply,
    StreamPurgeReply,
    StreamUpdateReply,
    reply_of,
)
from jetlake.model.requests import (
    MessageDeleteRequest,
    MessageGetRequest,
    StreamCreateRequest,
    StreamInfoRequest,
    StreamListRequest,
    StreamPurgeRequest,
)
from jetlake.model.rules.stream_rules import (
    StreamRules,
    check_consumers_within,
    check_stream_change,
    check_stream_config_in_steps,
    check_stream_request,
)
from jetlake.model.stream import ClusterInfo, StreamConfig, StreamInfo
from jetlake.protocol.subjects import overlaps
from jetlake.server.engine.api.jetstream import JetStream
from jetlake.server.engine.api.metadata import with_served_metadata, with_stored_metadata
from jetlake.server.engine.api.request import ApiRequest, Handler, is_empty_object, last_message, page, promise_again
from jetlake.server.engine.stream.stream import Stream
from jetlake.store.message import StoredMessage as Stored
from jetlake.store.message_store import MessageStore
from jetlake.store.steps import Steps, in_groups
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["HANDLERS", "stream_info", "stream_rules"]

NAMES_PER_PAGE = 1024
INFOS_PER_PAGE = 256
SUBJECTS_PER_PAGE = 100_000
SUBJECTS_PER_STEP = 1024
# A gap between two messages may be as wide as sequences go.
DELETED_MAX = 100_000
SEQUENCES_PER_STEP = 4096


# The account


def account_info(request: ApiRequest) -> AccountInfoReply:
    """Handle `INFO`."""
    return reply_of(AccountInfoReply, request.jetstream.info())


# Streams


def stream_create(request: ApiRequest) -> Steps[StreamCreateReply]:
    """Handle `STREAM.CREATE`; creating a stream again with the same configuration succeeds."""
    jetstream = request.jetstream
    body = request.body or StreamCreateRequest()
    config = body.config
    check_stream_request(request.stream, config)
    _check_room(jetstream, config)
    checked = check_stream_config_in_steps(config, stream_rules(request, pedantic=body.pedantic))
    config = with_stored_metadata((yield from checked))
    if config.name not in jetstream.streams:
        yield from jetstream.check_others(config)
        # Other streams may have been created or restored meanwhile.
        _check_room(jetstream, config)
    existing = jetstream.streams.get(config.name)
    if existing is not None:
        if existing.config != config:
            raise api_error(10058)
        promise_again(request, existing.storage)
        return _created(request, existing)
    return _created(request, (yield from jetstream.create_stream(config, request.now_ns)))


def _check_room(jetstream: JetStream, config: StreamConfig) -> None:
    """Check that the account has room for a stream, unless it exists."""
    if config.name not in jetstream.streams:
        jetstream.check_free(config.name)
        jetstream.check_stream_count()
        jetstream.check_room(config.storage, config.max_bytes or -1)


def _created(request: ApiRequest, stream: Stream) -> StreamCreateReply:
    request.awaits.extend((stream.storage.folder, stream.store if stream.store.durable else None))
    # As in nats-server, only this answer about a stream leaves out the domain.
    return reply_of(StreamCreateReply, replace(stream_info(stream, request.now_ns), domain=""), did_create=True)


def stream_update(request: ApiRequest) -> Steps[StreamUpdateReply]:
    """Handle `STREAM.UPDATE`, which replaces the whole configuration."""
    jetstream = request.jetstream
    body = request.body or StreamCreateRequest()
    config = body.config
    # First: other streams may change between two steps.
    if request.stream in jetstream.streams:
        yield from jetstream.streams[request.stream].copying.prepare(config)
    config = yield from check_stream_config_in_steps(config, stream_rules(request, pedantic=body.pedantic))
    if config.name != request.stream:
        raise api_error(10056)
    old = jetstream.stream(config.name).config
    config = with_stored_metadata(check_stream_change(old, config))
    yield from jetstream.check_others(config)
    stream = jetstream.stream(config.name)
    jetstream.check_room(config.storage, max(config.max_bytes - max(old.max_bytes, 0), 0))
    check_consumers_within(old, config, [(name, consumer.config) for name, consumer in stream.consumers.items()])
    jetstream.on_streams_changed()
    yield from jetstream.reserved(config, stream.update(config, request.now_ns))
    yield from stream.retention.finish_sweep()
    request.awaits.extend((stream.storage.folder, stream.store if stream.store.durable else None))
    jetstream.advisories.stream_action(stream.name, ActionKind.MODIFY)
    return reply_of(StreamUpdateReply, stream_info(stream, request.now_ns))


def stream_delete(request: ApiRequest) -> Steps[StreamDeleteReply]:
    """Handle `STREAM.DELETE`."""
    jetstream = request.jetstream
    request.awaits.append((yield from jetstream.delete_stream(jetstream.stream(request.stream))))
    return StreamDeleteReply(success=True)


def stream_names(request: ApiRequest) -> Steps[StreamNamesReply]:
    """Handle `STREAM.NAMES`."""
    body = request.body or StreamListRequest()
    names = yield from _stream_names(request, body)
    offset, some = page(names, body.offset, NAMES_PER_PAGE)
    return StreamNamesReply(total=len(names), offset=offset, limit=NAMES_PER_PAGE, streams=some or None)


def stream_list(request: ApiRequest) -> Steps[StreamListReply]:
    """Handle `STREAM.LIST`."""
    body = request.body or StreamListRequest()
    names = yield from _stream_names(request, body)
    offset, some = page(names, body.offset, INFOS_PER_PAGE)
    infos: list[Any] = []
    now = format_time(request.now_ns)
    for name in some:
        if (stream := request.jetstream.streams.get(name)) is not None:
            infos.append(Raw(encode(_info(stream, stream.encoded_config(), request.now_ns, now))))
        yield
    offline = request.jetstream.set_aside()
    return StreamListReply(total=len(names), offset=offset, limit=INFOS_PER_PAGE, streams=tuple(infos), offline=offline)


def stream_info_reply(request: ApiRequest) -> StreamInfoReply | Steps[StreamInfoReply]:
    """Handle `STREAM.INFO`."""
    body = request.body or StreamInfoRequest()
    stream = request.jetstream.stream(request.stream)
    info = stream_info(stream, request.now_ns, leads=True)
    if not body.deleted_details and not body.subjects_filter:
        return reply_of(StreamInfoReply, info)
    return _info_with_details(stream, info, body)


def _info_with_details(stream: Stream, info: StreamInfo, body: StreamInfoRequest) -> Steps[StreamInfoReply]:
    """Return a stream's info with deleted sequences, and a page of the subjects that match the filter."""
    store = stream.store
    if body.deleted_details:
        deleted = yield from _deleted(store)
        info = replace(info, state=replace(info.state, deleted=deleted))
    if not body.subjects_filter:
        return reply_of(StreamInfoReply, info)
    names = yield from store.subjects_in_steps(body.subjects_filter.encode())
    if not names:
        return reply_of(StreamInfoReply, info)
    offset = max(body.offset, 0)
    subjects: dict[str, int] = {}
    for group in in_groups(names[offset : offset + SUBJECTS_PER_PAGE], SUBJECTS_PER_STEP):
        subjects.update((name.decode("utf-8", "replace"), count) for name in group if (count := store.count_on(name)))
        yield
    state = replace(info.state, subjects=subjects)
    numbers = {"total": len(names), "offset": offset, "limit": SUBJECTS_PER_PAGE}
    return reply_of(StreamInfoReply, replace(info, state=state), **numbers)


def _deleted(store: MessageStore) -> Steps[tuple[int, ...]]:
    """Return the first of the sequences between the first and the last message that have none."""
    deleted: list[int] = []
    at = store.first_sequence
    while store.messages and at <= store.last_sequence and len(deleted) < DELETED_MAX:
        end = min(at + SEQUENCES_PER_STEP, store.last_sequence + 1)
        deleted += store.deleted(at, end)
        at = end
        yield
    return tuple(deleted[:DELETED_MAX])


def stream_purge(request: ApiRequest) -> Steps[StreamPurgeReply]:
    """Handle `STREAM.PURGE`: all messages, or a selection by filter, sequence and number to keep."""
    body = request.body or StreamPurgeRequest()
    if body.seq and body.keep:
        raise api_error(10003)
    stream = request.jetstream.stream(request.stream)
    if stream.config.sealed:
        raise api_error(10109)
    if stream.config.deny_purge:
        raise api_error(10110, err="stream purge not permitted")
    subject_filter = SubjectFilter.of([body.filter.encode()]) if body.filter else None
    purged = yield from stream.purge(subject_filter, below=body.seq or None, keep=body.keep or None)
    return StreamPurgeReply(success=True, purged=purged)


# Messages


def message_get(request: ApiRequest) -> Steps[MessageGetReply]:
    """Handle `STREAM.MSG.GET`, which selects one message in exactly one way."""
    body = request.body
    if body is None or not _finds_one(body):
        raise api_error(10003)
    stream = request.jetstream.stream(request.stream)
    try:
        message = yield from _find_message(stream, body)
    except ConfigError as error:  # an invalid time
        raise api_error(10025, err=str(error)) from None
    if message is None:
        raise api_error(10037)
    if message.sequence > stream.visible_sequence and stream.store.durable:
        request.awaits.append(stream.store)  # The disk may refuse it, and another message gets its sequence.
    return MessageGetReply(
        message=StoredMessage(
            subject=message.subject.decode("utf-8", "replace"),
            seq=message.sequence,
            hdrs=b"" if body.no_hdr else message.header,
            data=message.payload,
            time=format_time(message.time_ns),
        )
    )


def _finds_one(body: MessageGetRequest) -> bool:
    if body.batch or body.max_bytes:
        return False
    if body.last_by_subj:
        return not (body.seq or body.next_by_subj or body.start_time)
    if body.start_time is not None:
        return not body.seq
    return bool(body.seq or body.next_by_subj)


def _find_message(stream: Stream, body: MessageGetRequest) -> Steps[Stored | None]:
    store = stream.store
    if body.last_by_subj:
        return (yield from last_message(store, body.last_by_subj.encode()))
    if body.seq and not body.next_by_subj:
        return store.get(body.seq)
    first = store.first_at_or_after(parse_time(body.start_time)) if body.start_time is not None else body.seq
    subject_filter = SubjectFilter.of([body.next_by_subj.encode()]) if body.next_by_subj else None
    yield from store.prepare(subject_filter)
    run = store.read(max(first, store.first_sequence), subject_filter, 1, 1)
    return run.messages[0] if run.messages else None


def message_delete(request: ApiRequest) -> MessageDeleteReply:
    """Handle `STREAM.MSG.DELETE`; the record is overwritten, unless `no_erase` is set."""
    body: MessageDeleteRequest | None = request.body
    if body is None or is_empty_object(request.payload):
        raise api_error(10003)
    stream = request.jetstream.stream(request.stream)
    if stream.config.sealed:
        raise api_error(10109)
    if stream.config.deny_delete:
        raise api_error(10057, err="message delete not permitted")
    if stream.config.storage is StorageType.FILE:
        if body.seq == 0:
            raise api_error(10057, err="no message found")
        if body.seq > stream.store.last_sequence:
            raise api_error(10057, err="stream store EOF")
    if not stream.remove(body.seq, erase=not body.no_erase):
        raise api_error(10043, seq=body.seq)
    return MessageDeleteReply(success=True)


# Shared by the handlers


def stream_info(stream: Stream, now_ns: int, *, leads: bool = False) -> StreamInfo:
    """Return a stream's info with the server's metadata, which lists leave out.

    Args:
        leads: name the server as the stream's leader.
    """
    cluster = ClusterInfo(leader=stream.services.options.server_name) if leads else None
    return _info(stream, with_served_metadata(stream.config), now_ns, format_time(now_ns), cluster)


def _info(stream: Stream, shown: Any, now_ns: int, now: str, cluster: ClusterInfo | None = None) -> StreamInfo:
    """Return a stream's info with the configuration to show, which may be encoded, and the time as text."""
    config = stream.config
    mirror, sources = stream.copying.info(now_ns) if config.mirror or config.sources else (None, ())
    return StreamInfo(
        config=shown,
        created=stream.created,
        state=stream.state(),
        domain=stream.services.options.domain,
        cluster=cluster,
        mirror=mirror,
        sources=sources,
        ts=now,
    )


def stream_rules(request: ApiRequest, *, pedantic: bool = False) -> StreamRules:
    """Return the limits and other streams that a configuration is checked against."""
    jetstream = request.jetstream
    limits = jetstream.services.options.limits
    return StreamRules(pedantic=pedantic, server=limits, account=jetstream.limits, lookup=jetstream.config_of)


def _stream_names(request: ApiRequest, body: StreamListRequest) -> Steps[list[str]]:
    """Return the sorted names of the streams that capture a subject which the request asks for."""
    streams = request.jetstream.streams
    names = yield from request.jetstream.stream_names.get()
    if not body.subject:
        return names
    wanted = body.subject.encode()
    found: list[str] = []
    for name in names:
        stream = streams.get(name)
        for group in in_groups(stream.config.subjects if stream is not None else (), SUBJECTS_PER_STEP):
            yield
            if any(overlaps(subject.encode(), wanted) for subject in group):
                found.append(name)
                break
    return found


HANDLERS: dict[str, Handler] = {
    "INFO": account_info,
    "STREAM.CREATE": stream_create,
    "STREAM.UPDATE": stream_update,
    "STREAM.DELETE": stream_delete,
    "STREAM.NAMES": stream_names,
    "STREAM.LIST": stream_list,
    "STREAM.INFO": stream_info_reply,
    "STREAM.PURGE": stream_purge,
    "STREAM.MSG.GET": message_get,
    "STREAM.MSG.DELETE": message_delete,
}
