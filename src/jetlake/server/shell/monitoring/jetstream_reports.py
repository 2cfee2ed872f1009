"""The reports on JetStream: use, limits, streams, consumers, health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Raw, to_builtins
from msgspec.json import encode

from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.encoding.times import format_time
from jetlake.model.enums import StorageType
from jetlake.server.shell.monitoring.query import Query
from jetlake.server.shell.monitoring.server_view import ServerView
from jetlake.server.version import API_LEVEL
from jetlake.store.steps import Steps, sort_in_steps

if TYPE_CHECKING:
    from jetlake.server.engine.api.jetstream import JetStream
    from jetlake.server.engine.engine import Engine
    from jetlake.server.engine.stream.stream import Stream

__all__ = ["account_report", "health_report", "jetstream_report", "jetstream_settings", "jetstream_usage"]

_LIMIT_DEFAULT = 1024
_STREAMS_PER_STEP = 256
_SYNC_INTERVAL_S = 120.0


def jetstream_settings(server: ServerView) -> dict[str, Any]:
    """Report the configuration of JetStream."""
    options = server.settings.options.jetstream
    engine = server.engine_loop.engine
    assert options is not None and engine is not None
    settings: dict[str, Any] = {
        "max_memory": engine.options.max_memory,
        "max_storage": engine.options.max_storage,
        "store_dir": server.jetstream_folder,
    }
    if options.domain:
        settings["domain"] = options.domain
    if options.sync_interval_s is None:
        # As nats-server, which names its default beside it: tools take 0 for an interval that is not known.
        settings["sync_interval"] = nanoseconds(_SYNC_INTERVAL_S)
        settings["sync_always"] = True
    else:
        settings["sync_interval"] = nanoseconds(options.sync_interval_s)
    settings["strict"] = options.strict
    return settings


def jetstream_usage(server: ServerView) -> dict[str, Any]:
    """Report the use of all accounts together."""
    engine = server.engine_loop.engine
    assert engine is not None
    usage = engine.usage
    jetstreams = engine.jetstreams.values()
    return {
        "memory": usage.used(StorageType.MEMORY),
        "storage": usage.used(StorageType.FILE),
        "reserved_memory": usage.reserved(StorageType.MEMORY),
        "reserved_storage": usage.reserved(StorageType.FILE),
        "accounts": len(jetstreams),
        "ha_assets": 0,
        "api": {
            "level": API_LEVEL,
            "total": sum(jetstream.api.total for jetstream in jetstreams),
            "errors": sum(jetstream.api.errors for jetstream in jetstreams),
        },
    }


def jetstream_report(server: ServerView, query: Query) -> Steps[dict[str, Any]]:
    """Report `/jsz`: use and limits, and on request accounts, their streams and the consumers of those."""
    head = {"server_id": server.info.id, "now": format_time(server.clock.now_ns())}
    engine = server.engine_loop.engine
    if engine is None:
        return {
            "memory": 0,
            "storage": 0,
            "accounts": 0,
            "api": {"level": 0, "total": 0, "errors": 0},
            **head,
            "disabled": True,
            "config": {"max_memory": 0, "max_storage": 0},
            "limits": {},
            "streams": 0,
            "consumers": 0,
            "messages": 0,
            "bytes": 0,
            "total": 0,
        }
    messages, size, consumers, streams = 0, 0, 0, 0
    everything = [stream for jetstream in engine.jetstreams.values() for stream in jetstream.streams.values()]
    for at in range(0, len(everything), _STREAMS_PER_STEP):
        group = everything[at : at + _STREAMS_PER_STEP]
        streams += len(group)
        consumers += sum(len(stream.consumers) for stream in group)
        messages += sum(stream.store.messages for stream in group)
        size += sum(stream.store.bytes for stream in group)
        yield
    report: dict[str, Any] = {
        **jetstream_usage(server),
        **head,
        "config": jetstream_settings(server),
        "limits": {},
        "streams": streams,
        "consumers": consumers,
        "messages": messages,
        "bytes": size,
    }
    if engine.storage.set_aside:
        report["set_aside"] = [
            {"account": account, "folder": folder, "reason": reason}
            for (account, folder), reason in engine.storage.set_aside.items()
        ]
    name = query.text("acc")
    offset, limit = query.page(_LIMIT_DEFAULT)
    flags = [query.flag(key) for key in ("accounts", "streams", "consumers")]
    if name or any(flags):
        chosen = sorted(each for each in engine.jetstreams if not name or each == name)
        details = {}
        for each in chosen[offset : offset + limit]:
            details[each] = yield from account_report(server, engine.jetstreams[each], query)
        report["account_details"] = list(details.values())
    report["total"] = len(engine.jetstreams)
    return report


def account_report(server: ServerView, jetstream: JetStream, query: Query) -> Steps[dict[str, Any]]:
    """Report the JetStream of one account, and on request its streams and the consumers of those, encoded."""
    with_consumers, with_config = query.flag("consumers"), query.flag("config")
    info = jetstream.info()
    report: dict[str, Any] = {
        "name": jetstream.account.name,
        "id": jetstream.account.name,
        "memory": info.memory,
        "storage": info.storage,
        "reserved_memory": info.reserved_memory,
        "reserved_storage": info.reserved_storage,
        "accounts": 0,
        "ha_assets": 0,
        "api": {"level": API_LEVEL, "total": info.api.total, "errors": info.api.errors},
    }
    if query.flag("streams") or with_consumers:
        report["stream_detail"] = details = []
        for name in (yield from jetstream.stream_names.get()):
            if (stream := jetstream.streams.get(name)) is not None:
                details.append(Raw(encode((yield from _stream(server, stream, with_consumers, with_config)))))
            yield
    return report


def _stream(server: ServerView, stream: Stream, with_consumers: bool, with_config: bool) -> Steps[dict[str, Any]]:
    report: dict[str, Any] = {
        "name": stream.name,
        "created": stream.created,
        "cluster": {"leader": server.info.name},
    }
    if with_config:
        report["config"] = to_builtins(stream.config)
    report["state"] = to_builtins(stream.state())
    mirror, sources = stream.copying.info(stream.services.clock.now_ns())
    if mirror is not None:
        report["mirror"] = to_builtins(mirror)
    if sources:
        report["sources"] = [to_builtins(source) for source in sources]
    if with_consumers:
        report["consumer_detail"] = details = []
        for name in (yield from sort_in_steps(list(stream.consumers))):
            if (consumer := stream.consumers.get(name)) is not None:
                details.append(Raw(encode(consumer.info())))
            yield
    return report


def health_report(server: ServerView, query: Query) -> Steps[tuple[int, dict[str, Any]]]:
    """Report `/healthz`: 200 and ok, or the reason why not; on request for one account, stream or consumer."""
    if server.info.lame_duck or not server.running:
        return 503, _unavailable("server is shutting down" if server.info.lame_duck else "server is not ready")
    engine = server.engine_loop.engine
    if query.flag("js-server-only") and not query.text("account"):
        return 200, {"status": "ok"}
    if engine is None:
        return (503, _unavailable("JetStream not enabled")) if server.wants_jetstream else (200, {"status": "ok"})
    if failures := engine.disk_failures() + (yield from engine.store_faults()):
        return 503, _unavailable(f"JetStream {'; '.join(failures)}")
    return _health_of(engine, query.text("account"), query.text("stream"), query.text("consumer"))


def _health_of(engine: Engine, account: str, stream: str, consumer: str) -> tuple[int, dict[str, Any]]:
    if stream and not account:
        return 400, _unavailable('"account" must not be empty when checking stream health')
    if consumer and not stream:
        return 400, _unavailable('"stream" must not be empty when checking consumer health')
    if account:
        jetstream = engine.jetstreams.get(account)
        if jetstream is None:
            return 404, _unavailable(f'JetStream account "{account}" not found')
        if stream:
            found = jetstream.streams.get(stream)
            if found is None:
                return 404, _unavailable(f'JetStream stream "{stream}" not found on account "{account}"')
            if consumer and consumer not in found.consumers:
                return 404, _unavailable(
                    f'JetStream consumer "{consumer}" not found for stream "{stream}" on account "{account}"'
                )
    return 200, {"status": "ok"}


def _unavailable(error: str) -> dict[str, Any]:
    return {"status": "unavailable", "error": error}
