"""Changes of consumers: create, edit, pause, resume, reset, unpin, delete."""

from __future__ import annotations

from typing import Any

import msgspec

from jetlake.client.api.config_options import configured, merged
from jetlake.client.pull.consumer import Consumer
from jetlake.dashboard.changes import Done, Prepared, arguments, consumer_options, differences, jetlake, or_file
from jetlake.dashboard.watching.server_api import ServerApi, checked_name
from jetlake.errors import InvalidOptionError
from jetlake.model.config_text import duration_text
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.durations import nanoseconds

PAUSE_MAX_S = 366 * 86400.0


class _Configured(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    consumer: str
    options: dict[str, Any]


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    consumer: str


class _Pause(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    consumer: str
    seconds: float


class _Reset(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    consumer: str
    sequence: int = 0


async def _found(api: ServerApi, stream: str, consumer: str) -> Consumer:
    return await api.jetstream.consumer(checked_name(stream), checked_name(consumer))


async def _create(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Configured, given)
    stream, name = checked_name(wanted.stream), checked_name(wanted.consumer)
    config = configured(ConsumerConfig, {"ack_policy": "explicit", **wanted.options, "durable_name": name})

    async def run() -> Done:
        await api.jetstream.create_consumer(stream, config)
        return Done(f"Created consumer {name} on {stream}.")

    words, file = or_file(consumer_options(wanted.options), "consumer.json", config)
    return Prepared(
        f"Create consumer {name} on {stream}",
        jetlake("consumer", "add", stream, name, *words, "--defaults"),
        run,
        differences(ConsumerConfig(), config),
        file=file,
    )


async def _edit(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Configured, given)
    consumer = await _found(api, wanted.stream, wanted.consumer)
    before = consumer.config
    after = merged(before, wanted.options)
    changes = differences(before, after)
    if not changes:
        raise InvalidOptionError(f"{consumer.name} has this configuration already")

    async def run() -> Done:
        if (await consumer.info()).config != before:
            raise InvalidOptionError(f"{consumer.name} was changed in the meantime; reload and try again")
        stream = await api.jetstream.stream(consumer.stream_name)
        await stream.update_consumer(after)
        return Done(f"Updated consumer {consumer.name} on {consumer.stream_name}.")

    changed = {name: value for name, value in wanted.options.items() if getattr(before, name) != getattr(after, name)}
    words, file = or_file(consumer_options(changed), "consumer.json", after)
    return Prepared(
        f"Edit consumer {consumer.name} of {consumer.stream_name}",
        jetlake("consumer", "edit", consumer.stream_name, consumer.name, *words),
        run,
        changes,
        file=file,
    )


async def _pause(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Pause, given)
    if not 0 < wanted.seconds <= PAUSE_MAX_S:
        raise InvalidOptionError("a pause must last between one second and one year")
    consumer = await _found(api, wanted.stream, wanted.consumer)

    async def run() -> Done:
        await consumer.pause(wanted.seconds)
        return Done(f"Paused consumer {consumer.name}.")

    return Prepared(
        f"Pause consumer {consumer.name} of {consumer.stream_name}",
        jetlake("consumer", "pause", consumer.stream_name, consumer.name, f"{wanted.seconds:.0f}s"),
        run,
        [("delivery", "active", f"paused for {duration_text(nanoseconds(wanted.seconds))}")],
    )


async def _resume(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Named, given)
    consumer = await _found(api, wanted.stream, wanted.consumer)

    async def run() -> Done:
        await consumer.resume()
        return Done(f"Resumed consumer {consumer.name}.")

    return Prepared(
        f"Resume consumer {consumer.name} of {consumer.stream_name}",
        jetlake("consumer", "resume", consumer.stream_name, consumer.name),
        run,
        [("delivery", "paused", "active")],
    )


async def _reset(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Reset, given)
    if wanted.sequence < 0:
        raise InvalidOptionError("a sequence must be at least 1")
    consumer = await _found(api, wanted.stream, wanted.consumer)

    async def run() -> Done:
        reply = await consumer.reset(wanted.sequence)
        return Done(f"Consumer {consumer.name} resumes at sequence {reply.reset_seq:,}.")

    words = ["--seq", str(wanted.sequence)] if wanted.sequence else []
    info = consumer.cached_info
    after = f"{wanted.sequence:,}" if wanted.sequence else f"{info.ack_floor.stream_seq + 1:,}, after its ack floor"
    return Prepared(
        f"Reset consumer {consumer.name} of {consumer.stream_name}",
        jetlake("consumer", "reset", consumer.stream_name, consumer.name, *words, "--force"),
        run,
        [("resumes at", f"{info.delivered.stream_seq + 1:,}", after)],
        "Messages from this sequence on are delivered again, acknowledged ones included.",
    )


async def _unpin(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Named, given)
    consumer = await _found(api, wanted.stream, wanted.consumer)
    groups = consumer.cached_info.priority_groups
    if not groups:
        raise InvalidOptionError(f"{consumer.name} has no priority group")
    group = groups[0]

    async def run() -> Done:
        await consumer.unpin(group.group)
        return Done(f"Unpinned the client of {consumer.name}.")

    return Prepared(
        f"Unpin group {group.group} of consumer {consumer.name}",
        jetlake("consumer", "unpin", consumer.stream_name, consumer.name, group.group, "--force"),
        run,
        [("pinned client", group.pinned_client_id or "none", "the next client that pulls")],
    )


async def _delete(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Named, given)
    consumer = await _found(api, wanted.stream, wanted.consumer)

    async def run() -> Done:
        await consumer.delete()
        return Done(f"Deleted consumer {consumer.name} of {consumer.stream_name}.")

    info = consumer.cached_info
    return Prepared(
        f"Delete consumer {consumer.name} of {consumer.stream_name}",
        jetlake("consumer", "rm", consumer.stream_name, consumer.name, "--force"),
        run,
        [("ack floor", f"{info.ack_floor.stream_seq:,}", "deleted")],
        "The position of the consumer can't be recovered; the messages stay in the stream.",
    )


CONSUMER_CHANGES = {
    "consumer.create": _create,
    "consumer.edit": _edit,
    "consumer.pause": _pause,
    "consumer.resume": _resume,
    "consumer.reset": _reset,
    "consumer.unpin": _unpin,
    "consumer.delete": _delete,
}
