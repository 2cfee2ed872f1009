"""`jetlake server check …`: monitoring plugins, whose exit code is 0 for OK, 1 for a warning and 2 for critical."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from jetlake import platform
from jetlake.cli import output
from jetlake.cli.check_result import CheckFormat, CheckResult, render_prometheus
from jetlake.cli.contexts import load_context
from jetlake.cli.name_completion import bucket_names, stream_names
from jetlake.cli.session import EXIT_USAGE, Session, fail, guarded, refusal, session_of, unreachable
from jetlake.cli.shared_options import SharedCommand, SharedGroup
from jetlake.cli.system import ask_servers
from jetlake.cli.values import DURATION
from jetlake.errors import ApiError, JetlakeError, KeyNotFoundError, MessageNotFoundError, NoServersError
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND
from jetlake.model.encoding.times import parse_time

Check = Callable[..., Awaitable[None]]

_CHECKS: dict[str, tuple[click.Command, Check]] = {}
"""Each check that the exporter may run, by its name: the options and the function."""
_METADATA = "io.nats.monitor."
"""What the keys of a stream's or consumer's metadata begin with that hold its own thresholds."""
_EXIT_CRITICAL = 2


def _note(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None:
        ctx.meta[f"{__name__}.{param.name}"] = value


def _render_options() -> list[click.Parameter]:
    """Make the options that say how a result is printed; they stand before or behind the name of the check."""
    return [
        click.Option(
            ["--format"],
            type=click.Choice(["nagios", "json", "prometheus", "text"]),
            expose_value=False,
            callback=_note,
            help="How the result is printed.  [default: nagios]",
        ),
        click.Option(
            ["--namespace"],
            metavar="NAME",
            expose_value=False,
            callback=_note,
            help="What the names of Prometheus metrics begin with.  [default: nats_server_check]",
        ),
        click.Option(
            ["--outfile"], metavar="FILE", expose_value=False, callback=_note, help="Write the result to this file."
        ),
    ]


@click.group(cls=SharedGroup, params=_render_options())
def check() -> None:
    """Check the health of servers, streams and consumers, as a plugin of a monitoring system.

    The exit code is 0 for OK, 1 for a warning, 2 for critical; all that goes wrong is critical.
    """


def _check(name: str, *options: Any, item: str, example: str) -> Callable[[Check], Check]:
    """Make a command of a function that fills in a result.

    Args:
        item: what is checked, with the options in braces.
    """

    def decorate(function: Check) -> Check:
        def run(**given: Any) -> None:
            ctx = click.get_current_context()
            session = session_of(ctx)
            result = guarded(lambda: asyncio.run(_outcome(name, item, function, session, given)), session)
            _print(ctx, result)
            raise SystemExit(result.exit_code)

        callback: Any = run
        callback.__doc__ = function.__doc__
        for option in reversed(options):
            callback = option(callback)
        made = check.command(name, example=example)(callback)
        made.params += _render_options()
        _CHECKS[name] = (made, function)
        return function

    return decorate


async def _outcome(kind: str, item: str, function: Check, session: Session, given: dict[str, Any]) -> CheckResult:
    """Run a check; an error is its critical finding."""
    result = CheckResult(kind, item.format(**given))
    try:
        await function(session, result, **given)
    except NoServersError as error:
        result.criticals.append(unreachable(error))
    except ApiError as error:
        result.criticals.append(refusal(error))
    except OSError as error:
        text = error.strerror or str(error)
        result.criticals.append(f"{error.filename}: {text}" if error.filename else text)
    except JetlakeError as error:
        result.criticals.append(str(error) or type(error).__name__)
    return result


def _print(ctx: click.Context, result: CheckResult) -> None:
    kind: CheckFormat = ctx.meta.get(f"{__name__}.format", "nagios")
    text = result.render(kind, ctx.meta.get(f"{__name__}.namespace", "nats_server_check"))
    file = ctx.meta.get(f"{__name__}.outfile")
    if file is None:
        click.echo(text)
        return
    try:
        # Whole or not at all, since a collector may read it at any moment.
        aside = Path(f"{file}.{os.getpid()}.tmp")
        aside.write_text(f"{text}\n")
        aside.replace(file)
    except OSError as error:
        click.echo(f"UNKNOWN {result.name} can't write {file}: {error.strerror}")
        raise SystemExit(3) from None


def _duration(name: str, text: str, default: str | None = None) -> Any:
    return click.option(name, type=DURATION, default=default, show_default=bool(default), help=text)


def _number(name: str, text: str, default: int | None = None, metavar: str = "N") -> Any:
    return click.option(name, type=int, default=default, show_default=default is not None, metavar=metavar, help=text)


def _seconds(duration_ns: int | None) -> float:
    return (duration_ns or 0) / NANOSECONDS_PER_SECOND


_stream = click.option(
    "--stream", required=True, metavar="STREAM", shell_complete=stream_names, help="The stream to check."
)


@_check(
    "connection",
    _duration("--connect-warn", "Warning threshold of the time to connect.", "500ms"),
    _duration("--connect-critical", "Critical threshold of the time to connect.", "1s"),
    _duration("--rtt-warn", "Warning threshold of the round trip to the server.", "500ms"),
    _duration("--rtt-critical", "Critical threshold of the round trip to the server.", "1s"),
    _duration("--req-warn", "Warning threshold of a request with its reply.", "500ms"),
    _duration("--req-critical", "Critical threshold of a request with its reply.", "1s"),
    item="Connection",
    example="jetlake server check connection --rtt-warn 10ms",
)
async def _connection(session: Session, result: CheckResult, **given: int) -> None:
    """Check that the server can be reached, and how fast it answers."""
    began = time.perf_counter()
    async with await session.connect() as client:
        connected_s = time.perf_counter() - began
        shown = session.target.shown
        _timed(result, "connect_time", connected_s, f"connected to {shown} in {{}}", given, "connect")
        _timed(result, "rtt", await client.rtt(), "rtt time {}", given, "rtt")
        inbox = client.new_inbox()
        async with await client.subscribe(inbox) as answering:
            began = time.perf_counter()
            await client.publish(inbox, b"x")
            await answering.next(timeout=session.timeout_s)
        _timed(result, "request_time", time.perf_counter() - began, "round trip took {}", given, "req")


def _timed(result: CheckResult, name: str, took_s: float, text: str, given: dict[str, int], option: str) -> None:
    warning, critical = (_seconds(given[f"{option}_{level}"]) for level in ("warn", "critical"))
    result.measure(name, took_s, warning, critical, unit="s")
    result.judge(text.format(output.duration(round(took_s * 1e9))), took_s, warning, critical)


def _thresholds(given: dict[str, Any], metadata: dict[str, str]) -> dict[str, Any]:
    """Return the options that were given, and for others the metadata's thresholds."""
    found = dict(given)
    for name, value in given.items():
        text = metadata.get(_METADATA + name.replace("_", "-"))
        if value is None and text is not None:
            is_time = "seen" in name or name.startswith("last_")
            found[name] = DURATION.convert(text, None, None) if is_time else int(text)
    return found


@_check(
    "stream",
    _stream,
    _number("--lag-critical", "Critical lag of a source or mirror.", metavar="MSGS"),
    _duration("--seen-critical", "Critical time since a source or mirror was seen."),
    _number("--min-sources", "Minimum number of sources."),
    _number("--max-sources", "Maximum number of sources."),
    _number("--peer-expect", "Number of replicas to expect in a cluster."),
    _number("--peer-lag-critical", "Critical lag of a replica.", metavar="OPS"),
    _duration("--peer-seen-critical", "Critical time since a replica was seen."),
    _number("--msgs-warn", "Warn when there are no more messages than this.", metavar="MSGS"),
    _number("--msgs-critical", "Critical when there are no more messages than this.", metavar="MSGS"),
    _number("--subjects-warn", "Warning threshold of the number of subjects; above --subjects-critical for too few."),
    _number("--subjects-critical", "Critical threshold of the number of subjects."),
    item="{stream}",
    example="jetlake server check stream --stream ORDERS --msgs-critical 1",
)
async def _stream_check(session: Session, result: CheckResult, stream: str, **given: Any) -> None:
    """Check messages, subjects, sources, mirror and replicas of a stream.

    Metadata of the stream gives thresholds too: `io.nats.monitor.lag-critical: 200` stands for --lag-critical.
    """
    async with session.jetstream() as js:
        info = (await js.stream(stream)).cached_info
    wanted = _thresholds(given, info.config.metadata)
    messages, subjects = info.state.messages, info.state.num_subjects
    result.measure("messages", messages, wanted["msgs_warn"] or 0, wanted["msgs_critical"] or 0)
    text = output.plural(messages, "message")
    _judge_few(result, text, messages, wanted["msgs_warn"], wanted["msgs_critical"])
    result.measure("subjects", subjects, wanted["subjects_warn"] or 0, wanted["subjects_critical"] or 0)
    result.judge(output.plural(subjects, "subject"), subjects, wanted["subjects_warn"], wanted["subjects_critical"])
    origins = [info.mirror] if info.mirror else list(info.sources)
    # A stream without sources, such as one that lost them by an edit, fails a check that asks for some.
    if info.config.mirror or info.config.sources or wanted["min_sources"] is not None:
        _judge_count(result, "source", len(origins), wanted["min_sources"], wanted["max_sources"])
    for origin in origins:
        kind = "mirror" if info.mirror else "source"
        result.measure(f"lag_{re.sub('[^A-Za-z0-9_]', '_', origin.name)}", origin.lag, 0, wanted["lag_critical"] or 0)
        result.judge(f"{kind} {origin.name} lag {origin.lag:,}", origin.lag, None, wanted["lag_critical"])
        _judge_seen(result, f"{kind} {origin.name}", origin.active, wanted["seen_critical"])
    replicas = info.cluster.replicas if info.cluster else ()
    if wanted["peer_expect"] is not None:
        _judge_count(result, "peer", len(replicas) + 1, wanted["peer_expect"], wanted["peer_expect"])
        if info.cluster and not info.cluster.leader and info.cluster.name:
            result.criticals.append("no leader")
    for peer in replicas:
        if peer.offline:
            result.criticals.append(f"peer {peer.name} is offline")
        result.judge(f"peer {peer.name} lag {peer.lag:,}", peer.lag, None, wanted["peer_lag_critical"])
        _judge_seen(result, f"peer {peer.name}", peer.active, wanted["peer_seen_critical"])


def _judge_few(result: CheckResult, text: str, value: int, warning: int | None, critical: int | None) -> None:
    """Note a finding by thresholds at or below which a number is too small."""
    if critical is not None and critical >= 0 and value <= critical:
        result.criticals.append(text)
    elif warning is not None and warning >= 0 and value <= warning:
        result.warnings.append(text)
    else:
        result.oks.append(text)


def _judge_count(result: CheckResult, noun: str, count: int, least: int | None, most: int | None) -> None:
    result.measure(f"{noun}s", count)
    if (least is not None and count < least) or (most is not None and count > most):
        wanted = (
            f"{least}" if least == most else f"{0 if least is None else least} to {'any' if most is None else most}"
        )
        result.criticals.append(f"{output.plural(count, noun)} of expected {wanted}")
    else:
        result.oks.append(output.plural(count, noun))


def _judge_seen(result: CheckResult, what: str, active_ns: int, critical_ns: int | None) -> None:
    """Note how long ago something was seen; below zero it never was."""
    if active_ns < 0:
        if critical_ns:
            result.criticals.append(f"{what} was never seen")
        return
    result.judge(f"{what} seen {output.age(active_ns / 1e9)} ago", active_ns, None, critical_ns or None)


@_check(
    "consumer",
    _stream,
    click.option("--consumer", required=True, metavar="CONSUMER", help="The consumer to check."),
    _number("--outstanding-ack-critical", "Critical number of messages that await an ack."),
    _number("--waiting-critical", "Critical number of waiting pulls."),
    _number("--unprocessed-critical", "Critical number of messages that are not delivered yet."),
    _duration("--last-delivery-critical", "Critical time since the last delivery."),
    _duration("--last-ack-critical", "Critical time since the last ack."),
    _number("--redelivery-critical", "Critical number of redelivered messages."),
    click.option("--pinned", is_flag=True, help="Critical unless each priority group has a pinned client."),
    item="{stream}_{consumer}",
    example="jetlake server check consumer --stream ORDERS --consumer worker --unprocessed-critical 1000",
)
async def _consumer_check(
    session: Session, result: CheckResult, stream: str, consumer: str, pinned: bool, **given: Any
) -> None:
    """Check the backlog of a consumer, and when it last delivered and was acknowledged.

    Metadata of the consumer gives thresholds too: `io.nats.monitor.waiting-critical: 20` stands for
    --waiting-critical.
    """
    async with session.jetstream() as js:
        info = await (await js.stream(stream)).consumer_info(consumer)
    wanted = _thresholds(given, info.config.metadata)
    for name, title, value, option in (
        ("ack_pending", "Ack Pending", info.num_ack_pending, "outstanding_ack_critical"),
        ("waiting", "Waiting Pulls", info.num_waiting, "waiting_critical"),
        ("pending", "Unprocessed Messages", info.num_pending, "unprocessed_critical"),
        ("redelivered", "Redelivered Messages", info.num_redelivered, "redelivery_critical"),
    ):
        result.measure(name, value, 0, wanted[option] or 0)
        result.judge(f"{title}: {value:,}", value, None, wanted[option])
    for title, when, option in (
        ("Last Delivery", info.delivered.last_active, "last_delivery_critical"),
        ("Last Ack", info.ack_floor.last_active, "last_ack_critical"),
    ):
        if not wanted[option]:
            continue
        if not when or when.startswith("0001-"):
            result.criticals.append(f"{title}: never")
            continue
        ago_ns = max(time.time_ns() - parse_time(when), 0)
        result.judge(f"{title}: {output.age(ago_ns / 1e9)} ago", ago_ns, None, wanted[option])
    if pinned or info.config.metadata.get(f"{_METADATA}pinned") == "true":
        groups = {group.group: group.pinned_client_id for group in info.priority_groups}
        if info.config.priority_policy != "pinned_client":
            result.criticals.append("the consumer has no pinned client policy")
        for name in info.config.priority_groups:
            into = result.oks if groups.get(name) else result.criticals
            into.append(f"group {name} has {'a' if groups.get(name) else 'no'} pinned client")


@_check(
    "message",
    _stream,
    click.option("--subject", default=">", show_default=True, metavar="SUBJECT", help="Subject of the newest message."),
    _duration("--age-warn", "Warning threshold of the message's age."),
    _duration("--age-critical", "Critical threshold of the message's age."),
    click.option("--content", default=".", metavar="REGEX", help="Critical unless the content matches."),
    click.option("--body-timestamp", is_flag=True, help="The content is the message's time, seconds since 1970."),
    item="Stream Message",
    example="jetlake server check message --stream ORDERS --subject orders.heartbeat --age-critical 1m",
)
async def _message_check(
    session: Session,
    result: CheckResult,
    stream: str,
    subject: str,
    age_warn: int | None,
    age_critical: int | None,
    content: str,
    body_timestamp: bool,
) -> None:
    """Check the age and content of the newest message on a subject of a stream."""
    try:
        pattern = re.compile(content.encode())
    except re.error as error:
        fail(f"--content {content}: {error}", EXIT_USAGE)
    async with session.jetstream() as js:
        try:
            message = await (await js.stream(stream)).get(last_by_subject=subject, direct=False)
        except MessageNotFoundError:
            result.criticals.append(f"no message on {subject} in stream {stream}")
            return
    stored_ns = parse_time(message.time)
    if body_timestamp:
        try:
            stored_ns = int(message.data.strip()) * NANOSECONDS_PER_SECOND
        except ValueError:
            result.criticals.append("the content is no time in seconds since 1970")
            return
    age_s = max(time.time_ns() - stored_ns, 0) / 1e9
    result.measure("age", age_s, _seconds(age_warn), _seconds(age_critical), unit="s", help="The age of the message")
    result.measure("size", len(message.data), help="The size of the message")
    text = f"message on {message.subject} is {output.age(age_s)} old"
    result.judge(text, age_s, _seconds(age_warn) or None, _seconds(age_critical) or None)
    if content != "." and not pattern.search(message.data):
        result.criticals.append(f"the content does not match {content}")


@_check(
    "meta",
    click.option("--expect", required=True, type=int, metavar="SERVERS", help="Number of servers to expect."),
    click.option("--lag-critical", required=True, type=int, metavar="OPS", help="Critical lag of a server."),
    click.option("--seen-critical", required=True, type=DURATION, help="Critical time since a server was seen."),
    item="JetStream Meta Cluster",
    example="jetlake server check meta --expect 3 --lag-critical 10 --seen-critical 10s --user sys --password secret",
)
async def _meta_check(
    session: Session, result: CheckResult, expect: int, lag_critical: int, seen_critical: int
) -> None:
    """Check the group of servers that leads JetStream in a cluster; for users of the system account."""
    answers = await ask_servers(session, "JSZ", {"leader_only": True})
    clusters = [one["data"]["meta_cluster"] for one in answers if one["data"].get("meta_cluster")]
    if not clusters:
        names = ", ".join(one["server"]["name"] for one in answers)
        result.criticals.append(f"{names or 'the server'} is not part of a cluster")
        return
    leading = next((one for one in clusters if one.get("replicas")), clusters[0])
    if not leading.get("leader"):
        result.criticals.append("no meta leader")
    peers = leading.get("replicas") or []
    _judge_count(result, "peer", len(peers) + 1, expect, expect)
    for peer in peers:
        if peer.get("offline"):
            result.criticals.append(f"peer {peer['name']} is offline")
        elif not peer.get("current"):
            result.criticals.append(f"peer {peer['name']} is not current")
        result.judge(f"peer {peer['name']} lag {peer.get('lag', 0):,}", peer.get("lag", 0), None, lag_critical)
        _judge_seen(result, f"peer {peer['name']}", peer.get("active", -1), seen_critical)


@_check(
    "jetstream",
    _number("--mem-warn", "Warning threshold of memory storage, in percent.", 75),
    _number("--mem-critical", "Critical threshold of memory storage, in percent.", 90),
    _number("--store-warn", "Warning threshold of disk storage, in percent.", 75),
    _number("--store-critical", "Critical threshold of disk storage, in percent.", 90),
    _number("--streams-warn", "Warning threshold of the number of streams, in percent.", -1),
    _number("--streams-critical", "Critical threshold of the number of streams, in percent.", -1),
    _number("--consumers-warn", "Warning threshold of the number of consumers, in percent.", -1),
    _number("--consumers-critical", "Critical threshold of the number of consumers, in percent.", -1),
    click.option("--replicas/--no-replicas", default=True, help="Whether the replicas of all streams are checked."),
    _duration("--replica-seen-critical", "Critical time since a replica was seen.", "5s"),
    _number("--replica-lag-critical", "Critical lag of a replica.", 200, "OPS"),
    item="JetStream",
    example="jetlake server check jetstream --store-critical 80",
)
async def _jetstream_check(
    session: Session,
    result: CheckResult,
    replicas: bool,
    replica_seen_critical: int,
    replica_lag_critical: int,
    **given: int,
) -> None:
    """Check what the account uses of its limits, and the replicas of its streams."""
    async with session.jetstream() as js:
        info = await js.account_info()
        streams = await js.streams() if replicas else []
    limits = info.limits
    for option, name, used, limit in (
        ("mem", "memory", info.memory, limits.max_memory),
        ("store", "storage", info.storage, limits.max_storage),
        ("streams", "streams", info.streams, limits.max_streams),
        ("consumers", "consumers", info.consumers, limits.max_consumers),
    ):
        warning, critical = given[f"{option}_warn"], given[f"{option}_critical"]
        result.measure(name, used)
        if limit <= 0:
            result.oks.append(f"{name} without limit")
            continue
        percent = used * 100 / limit
        result.measure(f"{name}_pct", round(percent, 2), warning, critical, unit="%")
        result.judge(f"{percent:.0f}% {name}", percent, warning, critical)
    if not replicas:
        return
    faulty = 0
    for stream in streams:
        for peer in stream.cluster.replicas if stream.cluster else ():
            lags = peer.lag >= replica_lag_critical or not peer.current
            if peer.offline or lags or peer.active > replica_seen_critical:
                faulty += 1
                state = "offline" if peer.offline else f"lag {peer.lag:,}, seen {output.age(peer.active / 1e9)} ago"
                result.criticals.append(f"stream {stream.config.name} replica {peer.name} {state}")
    result.measure("replicas_fail", faulty)
    if not faulty:
        result.oks.append("all replicas are healthy")


@_check(
    "server",
    click.option("--name", required=True, metavar="NAME", help="Name of the server."),
    _number("--cpu-warn", "Warning threshold of CPU usage, in percent."),
    _number("--cpu-critical", "Critical threshold of CPU usage, in percent."),
    _number("--mem-warn", "Warning threshold of memory, in MiB."),
    _number("--mem-critical", "Critical threshold of memory, in MiB."),
    _number("--conn-warn", "Warning threshold of connections; above --conn-critical for too few."),
    _number("--conn-critical", "Critical threshold of connections."),
    _number("--subs-warn", "Warning threshold of subscriptions; above --subs-critical for too few."),
    _number("--subs-critical", "Critical threshold of subscriptions."),
    _duration("--uptime-warn", "Warn when the server runs for no longer than this."),
    _duration("--uptime-critical", "Critical when the server runs for no longer than this."),
    click.option("--auth-required", is_flag=True, help="Critical unless clients must log in."),
    click.option("--tls-required", is_flag=True, help="Critical unless clients must use TLS."),
    click.option("--js-required", is_flag=True, help="Critical unless JetStream is on."),
    item="{name}",
    example="jetlake server check server --name s1 --conn-critical 1000 --user sys --password secret",
)
async def _server_check(
    session: Session,
    result: CheckResult,
    name: str,
    auth_required: bool,
    tls_required: bool,
    js_required: bool,
    **given: int | None,
) -> None:
    """Check a server's load and its security settings; for users of the system account."""
    answers = await ask_servers(session, "VARZ")
    found = next((one["data"] for one in answers if one["server"]["name"] == name), None)
    if found is None:
        others = ", ".join(sorted(one["server"]["name"] for one in answers)[:10])
        result.criticals.append(f"no answer from server {name}; these answer: {others}")
        return
    for option, title, value in (
        ("cpu", "CPU", found.get("cpu", 0)),
        ("mem", "memory", found.get("mem", 0) / 1024**2),
        ("conn", "connections", found.get("connections", 0)),
        ("subs", "subscriptions", found.get("subscriptions", 0)),
    ):
        warning, critical = given[f"{option}_warn"], given[f"{option}_critical"]
        result.measure(
            {"conn": "connections", "subs": "subscriptions"}.get(option, option), value, warning or 0, critical or 0
        )
        if warning is not None or critical is not None:
            result.judge(f"{title} {value:,.0f}", value, warning, critical)
    uptime_ns = max(parse_time(found["now"]) - parse_time(found["start"]), 0)
    result.measure(
        "uptime", uptime_ns / 1e9, _seconds(given["uptime_warn"]), _seconds(given["uptime_critical"]), unit="s"
    )
    text = f"up {output.age(uptime_ns / 1e9)}"
    _judge_few(result, text, uptime_ns, given["uptime_warn"], given["uptime_critical"])
    demands = (
        (auth_required, found.get("auth_required"), "authentication required"),
        (tls_required, found.get("tls_required"), "TLS required"),
        (js_required, bool(found.get("jetstream", {}).get("config")), "JetStream enabled"),
    )
    for is_demanded, holds, what in demands:
        if is_demanded:
            (result.oks if holds else result.criticals).append(what if holds else f"{what}: no")


@_check(
    "kv",
    click.option("--bucket", required=True, metavar="BUCKET", shell_complete=bucket_names, help="The bucket to check."),
    _number("--values-critical", "Critical threshold of values; above --values-warn for too many.", -1),
    _number("--values-warn", "Warning threshold of values.", -1),
    click.option("--key", metavar="KEY", help="Critical unless this key has a value."),
    item="{bucket}",
    example="jetlake server check kv --bucket PRICES --key tea",
)
async def _kv_check(
    session: Session, result: CheckResult, bucket: str, values_critical: int, values_warn: int, key: str | None
) -> None:
    """Check the number of values in a bucket, and one of its keys."""
    async with session.jetstream() as js:
        handle = await js.key_value(bucket)
        status = await handle.status()
        result.oks.append(f"bucket {bucket}")
        result.measure("values", status.values, values_warn, values_critical)
        result.measure("bytes", status.bytes)
        result.measure("replicas", status.stream.config.num_replicas)
        result.judge(output.plural(status.values, "value"), status.values, values_warn, values_critical)
        if key is None:
            return
        try:
            await handle.get(key)
        except KeyNotFoundError:
            result.criticals.append(f"key {key} not found")
        else:
            result.oks.append(f"key {key} found")


@_check(
    "credential",
    click.option("--credential", required=True, metavar="FILE", help="The credentials file to check."),
    _duration("--validity-warn", "Warn when it expires within this time."),
    _duration("--validity-critical", "Critical when it expires within this time."),
    click.option(
        "--require-expiry/--no-require-expiry", default=True, help="Whether one that never expires is critical."
    ),
    item="Credential",
    example="jetlake server check credential --credential user.creds --validity-warn 30d",
)
async def _credential_check(
    session: Session,
    result: CheckResult,
    credential: str,
    validity_warn: int | None,
    validity_critical: int | None,
    require_expiry: bool,
) -> None:
    """Check when the JWT in a credentials file expires; asks no server."""
    claims = _claims(credential)
    if claims is None:
        result.criticals.append(f"{credential} has no user JWT")
        return
    expires = claims.get("exp") or 0
    if not expires:
        (result.criticals if require_expiry else result.oks).append("never expires")
        return
    left_s = expires - time.time()
    result.measure("expiry", max(left_s, 0), _seconds(validity_warn), _seconds(validity_critical), unit="s")
    when = f"{datetime.fromtimestamp(expires):%Y-%m-%d %H:%M:%S}"
    if left_s <= 0:
        result.criticals.append(f"expired at {when}")
        return
    text = f"expires in {output.age(left_s)} at {when}"
    _judge_few(result, text, round(left_s * NANOSECONDS_PER_SECOND), validity_warn, validity_critical)


def _claims(file: str) -> dict[str, Any] | None:
    """Return what the JWT of a credentials file says, unverified."""
    from base64 import urlsafe_b64decode

    found = re.search(rb"[A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+", platform.expand_user(file).read_bytes())
    with suppress(ValueError, msgspec.DecodeError):
        if found:
            claims = msgspec.json.decode(urlsafe_b64decode(found[1] + b"=" * (-len(found[1]) % 4)))
            return claims if isinstance(claims, dict) else None
    return None


# The exporter


class _Job(msgspec.Struct, forbid_unknown_fields=True):
    """A check of the exporter's configuration."""

    name: str
    kind: str
    context: str = ""
    properties: dict[str, str | int | float | bool] = {}


class _Jobs(msgspec.Struct, forbid_unknown_fields=True):
    """The exporter's configuration."""

    checks: list[_Job]
    context: str = ""


@check.command("exporter", cls=SharedCommand, example="jetlake server check exporter --config checks.json --port 8080")
@click.option("--config", "file", required=True, metavar="FILE", help="The checks to run, in JSON or YAML.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port to listen on.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--https-certificate", metavar="FILE", help="Certificate for HTTPS.")
@click.option("--https-key", metavar="FILE", help="Key of the certificate.")
@click.pass_context
def exporter(
    ctx: click.Context, file: str, port: int, host: str, https_certificate: str | None, https_key: str | None
) -> None:
    """Run checks whenever Prometheus asks for /metrics, until Ctrl-C.

    The configuration lists checks by name and kind, with the options of the kind as properties:
    {"checks": [{"name": "orders", "kind": "stream", "properties": {"stream": "ORDERS", "msgs-critical": 1}}]}
    """
    session = session_of(ctx)
    jobs = _read_jobs(file)
    prepared = [(job, _prepared(job, ctx)) for job in jobs.checks]
    if bool(https_certificate) != bool(https_key):
        fail("--https-certificate and --https-key need each other", EXIT_USAGE)
    tls = None
    if https_certificate:
        import ssl

        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        guarded(lambda: tls.load_cert_chain(https_certificate, https_key), session)
    namespace = ctx.meta.get(f"{__name__}.namespace", "nats_server_check")

    async def metrics() -> str:
        results = [await _export(job, given, session, jobs.context) for job, given in prepared]
        return render_prometheus(results, namespace) + "\n"

    from jetlake.cli.metrics_server import serve_metrics

    guarded(lambda: asyncio.run(serve_metrics(host, port, tls, metrics)), session)


async def _export(job: _Job, given: dict[str, Any], session: Session, context: str) -> CheckResult:
    own = job.context or context
    if own:
        session = Session.of_target(load_context(own), session.timeout_s)
    result = await _outcome(job.kind, "", _CHECKS[job.kind][1], session, given)
    result.name = job.name
    return result


def _read_jobs(file: str) -> _Jobs:
    try:
        text = Path(file).read_bytes()
        if file.endswith((".yaml", ".yml")):
            import yaml  # type: ignore[import-untyped]

            return msgspec.convert(yaml.safe_load(text), _Jobs)
        return msgspec.json.decode(text, type=_Jobs)
    except OSError as error:
        fail(f"{file}: {error.strerror}", EXIT_USAGE)
    except ImportError:
        fail(f"{file}: YAML needs a package; pip install pyyaml, or write the file in JSON", EXIT_USAGE)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        fail(f"{file}: {error}", EXIT_USAGE)


def _prepared(job: _Job, ctx: click.Context) -> dict[str, Any]:
    """Read a job's properties as the options of its check."""
    if job.kind not in _CHECKS:
        fail(f"check {job.name}: unknown kind {job.kind!r}; use one of {', '.join(_CHECKS)}", EXIT_USAGE)
    words: list[str] = []
    for key, value in job.properties.items():
        option = f"--{key.replace('_', '-')}"
        words += [option] if value is True else [] if value is False else [option, str(value)]
    try:
        return _CHECKS[job.kind][0].make_context(job.name, words, parent=ctx).params
    except click.UsageError as error:
        fail(f"check {job.name}: {error.format_message()}", EXIT_USAGE)
