"""The handlers of `STREAM.SNAPSHOT` and `STREAM.RESTORE`: begin a transfer, which continues by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jetlake.errors import ApiError, JetlakeError, StoreError, api_error
from jetlake.model.api import encode_error
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.times import format_time
from jetlake.model.events import (
    ClientInfo,
    Event,
    RestoreComplete,
    RestoreCreate,
    SnapshotComplete,
    SnapshotCreate,
    event_subject,
)
from jetlake.model.replies import StreamCreateReply, StreamRestoreReply, StreamSnapshotReply, reply_of
from jetlake.model.requests import StreamRestoreRequest, StreamSnapshotRequest
from jetlake.model.rules.stream_rules import check_stream_config_in_steps
from jetlake.model.stream import StreamConfig
from jetlake.protocol.subjects import is_valid_publish
from jetlake.server.engine.api.jetstream import JetStream
from jetlake.server.engine.api.metadata import with_stored_metadata
from jetlake.server.engine.api.request import ApiRequest, Handler, is_empty_object
from jetlake.server.engine.api.stream_api import stream_info, stream_rules
from jetlake.store.steps import Steps

if TYPE_CHECKING:
    from jetlake.server.engine.snapshot.loader import LoadedConsumer, StreamLoader

__all__ = ["HANDLERS"]


def stream_snapshot(request: ApiRequest) -> StreamSnapshotReply:
    """Handle `STREAM.SNAPSHOT`: answer with the state, then send the archive."""
    # Loaded with the first backup, as the libraries that they need.
    from jetlake.server.engine.snapshot.sender import ArchiveSender, archive_pieces, inflight_max

    jetstream = request.jetstream
    body: StreamSnapshotRequest | None = request.body
    if body is None or is_empty_object(request.payload):
        raise api_error(10003)
    stream = jetstream.stream(request.stream)
    subject = body.deliver_subject.encode()
    if not subject or not is_valid_publish(subject):
        raise api_error(10015)
    jetstream.transfers.check_room(10064)
    services = jetstream.services
    state = stream.state()
    announce = _announcer(request)
    began = format_time(request.now_ns)

    def end(error: str) -> None:
        times = {"start": began, "end": format_time(services.clock.now_ns())}
        announce(SnapshotComplete, "SNAPSHOT_COMPLETE", {**times, "error": error})

    sender = ArchiveSender(
        stream,
        jetstream.transfers,
        subject,
        archive_pieces(stream, state, consumers=not body.no_consumers, now_ns=request.now_ns),
        window=inflight_max(body.chunk_size, body.window_size),
        on_end=end,
    )

    def begin() -> None:
        announce(SnapshotCreate, "SNAPSHOT_CREATE", {"state": state})
        sender.begin()

    # The answer leaves with what is settled next, and the first chunk after it.
    services.commit.when_settled(lambda: services.commit.when_settled(begin))
    return StreamSnapshotReply(config=stream.config, state=state)


def stream_restore(request: ApiRequest) -> Steps[StreamRestoreReply]:
    """Handle `STREAM.RESTORE`: check the configuration, then wait for the archive."""
    from jetlake.server.engine.snapshot.receiver import ArchiveReceiver

    jetstream = request.jetstream
    body: StreamRestoreRequest | None = request.body
    if body is None or is_empty_object(request.payload):
        raise api_error(10003)
    config = yield from _checked_config(request, body.config)
    jetstream.transfers.check_room(10062)
    services = jetstream.services
    try:
        loader = jetstream.load_stream(config, request.now_ns)
    except StoreError as error:
        raise api_error(10062, err=str(error)) from None
    name = config.name
    began = format_time(request.now_ns)
    announce = _announcer(request)
    jetstream.restoring[name] = config

    def end(received: int) -> None:
        jetstream.restoring.pop(name, None)
        times = {"start": began, "end": format_time(services.clock.now_ns())}
        announce(RestoreComplete, "RESTORE_COMPLETE", {**times, "bytes": received})

    receiver = ArchiveReceiver(
        services,
        jetstream.account,
        jetstream.transfers,
        loader,
        adopt=lambda loader, consumers: _adopt(jetstream, loader, consumers),
        answer=lambda reply, error: _answer(jetstream, name, reply, error),
        on_end=end,
    )
    receiver.begin()
    announce(RestoreCreate, "RESTORE_CREATE", {})
    return StreamRestoreReply(deliver_subject=f"$JS.SNAPSHOT.RESTORE.{name}.{receiver.transfer_id.decode()}")


def _checked_config(request: ApiRequest, config: StreamConfig) -> Steps[StreamConfig]:
    jetstream = request.jetstream
    if config.name and config.name != request.stream:
        raise api_error(10056)
    config = replace(config, name=request.stream)
    if "/" in config.name or "\\" in config.name:
        raise api_error(10128)
    config = with_stored_metadata((yield from check_stream_config_in_steps(config, stream_rules(request))))
    if config.name in jetstream.streams or config.name in jetstream.restoring:
        raise api_error(10130)
    jetstream.check_stream_count()
    jetstream.check_room(config.storage, config.max_bytes or -1)
    return config


def _adopt(jetstream: JetStream, loader: StreamLoader, consumers: list[LoadedConsumer]) -> None:
    jetstream.adopt(loader, consumers)


def _answer(jetstream: JetStream, name: str, reply: bytes, error: ApiError | None) -> None:
    """Answer the end of a restore, when the stream is durable."""
    if error is not None:
        _publish(jetstream, reply, encode_error(StreamCreateReply, error))
        return
    stream = jetstream.streams[name]
    commit = jetstream.services.commit

    def told(failure: JetlakeError | None) -> None:
        if failure is not None:
            _publish(jetstream, reply, encode_error(StreamCreateReply, api_error(10062, err=str(failure))))
        else:
            info = replace(stream_info(stream, jetstream.services.clock.now_ns()), domain="")
            _publish(jetstream, reply, encode(reply_of(StreamCreateReply, info)))

    if stream.storage.folder is not None:
        commit.when_durable(stream.storage.folder, told)
    else:
        commit.when_settled(lambda: told(None))


def _publish(jetstream: JetStream, reply: bytes, payload: bytes) -> None:
    """Answer subscribers alone: the client must not make requests in the server's name."""
    jetstream.account.send_to(reply, [(reply, b"", b"", payload)])


def _announcer(request: ApiRequest) -> Callable[[type[Event], str, dict[str, Any]], None]:
    """Return what publishes the events of a transfer, which name the stream and the client."""
    origin = request.origin

    def announce(kind: type[Event], verb: str, fields: dict[str, Any]) -> None:
        def values() -> dict[str, Any]:
            client = origin.client_info() if origin is not None else {}
            return {"stream": request.stream, "client": ClientInfo(**client) if client else None, **fields}

        subject = event_subject(f"ADVISORY.STREAM.{verb}", request.stream)
        request.jetstream.advisories.publish(subject, kind, values)

    return announce


HANDLERS: dict[str, Handler] = {
    "STREAM.SNAPSHOT": stream_snapshot,
    "STREAM.RESTORE": stream_restore,
}
