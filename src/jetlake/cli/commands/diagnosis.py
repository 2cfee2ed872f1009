"""`jetlake trace`, `latency`, `traffic`, `top`, `cheat` and `audit`: where messages go, how fast, who sends them."""

from __future__ import annotations

import asyncio
import io
import sys
import time
import zipfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.command_table import COMMANDS
from jetlake.cli.message_content import headers_of, headers_option
from jetlake.cli.session import EXIT_USAGE, Session, command, confirm, fail, force_option, json_option, raise_refused
from jetlake.cli.shared_options import SharedCommand, SharedGroup
from jetlake.cli.system import ask_servers, collect
from jetlake.cli.values import WAIT
from jetlake.errors import JetlakeError
from jetlake.model.encoding.times import parse_time

_KINDS = {0: "Client", 1: "Router", 2: "Gateway", 4: "Leafnode", 3: "System", 5: "JetStream", 6: "Account"}
_ARROWS = {0: "--C", 1: "-->", 2: "==>", 4: "~~>", 5: "--J"}
_QUIET_S = 0.5
"""How long to wait for another server's part of a trace."""


@click.command(cls=SharedCommand, example="jetlake trace orders.new hello")
@click.argument("subject")
@click.argument("payload", default="")
@click.option("--deliver", is_flag=True, help="Also deliver the message to subscribers.")
@click.option("-T", "--timestamp", is_flag=True, help="Show the time since the message arrived.")
@headers_option
@json_option
@command
async def trace(
    session: Session,
    subject: str,
    payload: str,
    deliver: bool,
    timestamp: bool,
    headers: tuple[tuple[str, str], ...],
    as_json: bool,
) -> None:
    """Publish a message to SUBJECT, and show which subscribers and streams it reaches.

    Without --deliver, it is not delivered.
    """
    events: list[dict[str, Any]] = []
    async with await session.connect() as client:
        inbox = client.new_inbox()
        sent = {**headers_of(headers), "Nats-Trace-Dest": inbox, **({} if deliver else {"Nats-Trace-Only": "true"})}
        async with await client.subscribe(inbox) as reports:
            await client.publish(subject, payload.encode(), headers=sent)
            await client.flush()
            raise_refused(client)
            with suppress(TimeoutError):
                wait_s = session.timeout_s
                while True:
                    async with asyncio.timeout(wait_s):
                        events.append(msgspec.json.decode((await anext(aiter(reports))).data))
                    wait_s = _QUIET_S
    if not events:
        raise JetlakeError("no trace came; the server must be nats-server 2.11, or jetlake")
    if as_json:
        output.print_json(events)
        return
    told = " with delivery to the final destination" if deliver else ""
    click.echo(f"Tracing message route to subject {subject}{told}\n")
    counted: Counter[str] = Counter()
    for event in events:
        for line in _trace_lines(event, timestamp, counted):
            click.echo(output.printable(line))
    click.echo("\nLegend: Client: --C Router: --> Gateway: ==> Leafnode: ~~> JetStream: --J Error: --X")
    if counted:
        output.print_facts("\nEgress Count:", {"": [(kind, number) for kind, number in counted.most_common()]})


def _trace_lines(event: dict[str, Any], timestamp: bool, counted: Counter[str]) -> list[str]:
    """Write one server's part of a trace, as `nats` does."""
    lines: list[str] = []
    server, stations = event.get("server", {}), event.get("events") or ()
    began = next((parse_time(one["ts"]) for one in stations if one.get("type") == "in" and one.get("ts")), 0)
    for one in stations:
        kind = one.get("kind", 0)
        name = f' "{one["name"]}"' if one.get("name") else ""
        line = ""
        if one["type"] == "in":
            line = f'{_KINDS.get(kind, kind)}{name} cid:{one.get("cid", 0)} server:"{server.get("name", "")}" '
            line += f'version:"{server.get("ver", "")}"'
        elif one["type"] == "eg":
            counted[str(_KINDS.get(kind, kind))] += 1
            facts = "".join(f' {key}:"{one[field]}"' for key, field in _EGRESS if one.get(field))
            line = f"{_ARROWS.get(kind, '-->')} {_KINDS.get(kind, kind)}{name} cid:{one.get('cid', 0)}{facts}"
        elif one["type"] == "js":
            counted["JetStream"] += 1
            action = "no interest" if one.get("nointerest") else "stored"
            line = (
                f'--J JetStream action:"{action}" stream:"{one.get("stream", "")}" subject:"{one.get("subject", "")}"'
            )
        elif one["type"] == "sm":
            line = f'    Mapping subject:"{one.get("to", "")}"'
        elif one["type"] == "se":
            line = f'    Stream Export subject:"{one.get("to", "")}" account:"{one.get("acc", "")}"'
        elif one["type"] == "si":
            line = f'    Service Import from:"{one.get("from", "")}" to:"{one.get("to", "")}" '
            line += f'account:"{one.get("acc", "")}"'
        since = f"[{output.duration(max(parse_time(one['ts']) - began, 0))}] " if timestamp and one.get("ts") else ""
        lines.append(since + line)
        if one.get("error"):
            lines.append(f"  --X Error: {one['error']}")
    if not any(one["type"] in ("eg", "js") for one in stations):
        lines.append("--X No active interest")
    return lines


_EGRESS = (("account", "acc"), ("subject", "sub"), ("queue", "queue"))


@click.command(cls=SharedCommand, example="jetlake latency --server-b nats://127.0.0.1:4222 --duration 2s")
@click.option("--server-b", required=True, metavar="URL", help="The server on which messages are received.")
@click.option("--size", type=click.IntRange(8), default=8, show_default=True, metavar="BYTES", help="Payload size.")
@click.option(
    "--rate", type=click.IntRange(1), default=1000, show_default=True, metavar="N", help="Messages per second."
)
@click.option("--duration", "length_s", type=WAIT, default="5s", show_default=True, help="How long to measure.")
@click.option("--histogram", metavar="FILE", help="Write the latency of each message, in milliseconds, to FILE.raw.")
@json_option
@command
async def latency(
    session: Session, server_b: str, size: int, rate: int, length_s: float, histogram: str | None, as_json: bool
) -> None:
    """Measure how long messages take from the server to another, or back to this command by the same one."""
    count = max(round(length_s * rate), 1)
    other = Session.of_target(msgspec.structs.replace(session.target, server=server_b), session.timeout_s)
    times_ns: list[int] = []
    async with await session.connect() as sender, await other.connect() as receiver:
        rtts = [await sender.rtt(), await receiver.rtt()]
        inbox, done = receiver.new_inbox(), asyncio.Event()

        def receive(message: Any) -> None:
            times_ns.append(time.time_ns() - int.from_bytes(message.data[:8], "little"))
            if len(times_ns) >= count:
                done.set()

        await receiver.subscribe(inbox, receive)
        await receiver.flush()
        await _routed(sender, receiver, session.timeout_s)
        began = time.perf_counter()
        for number in range(count):
            await sender.publish(inbox, time.time_ns().to_bytes(8, "little") + bytes(size - 8))
            await asyncio.sleep(max(began + (number + 1) / rate - time.perf_counter(), 0))
        took_s = time.perf_counter() - began
        await sender.flush()
        with suppress(TimeoutError):
            async with asyncio.timeout(session.timeout_s):
                await done.wait()
    if histogram:
        _write(f"{histogram}.raw", "".join(f"{one / 1e6:.6f}\n" for one in times_ns).encode())
    if not times_ns:
        raise JetlakeError("no message arrived at the second server")
    ordered = sorted(times_ns)
    points = (10, 50, 75, 90, 99, 99.9, 99.99, 100)
    values = {point: ordered[min(int(len(ordered) * point / 100), len(ordered) - 1)] for point in points}
    if as_json:
        output.print_json(
            {
                "messages": len(ordered),
                "lost": count - len(ordered),
                "percentiles_ns": {str(k): v for k, v in values.items()},
            }
        )
        return
    output.print_facts(
        f"{output.plural(len(ordered), 'message')} of {count:,}",
        {
            "": [
                ("Pub Server RTT", output.duration(round(rtts[0] * 1e9))),
                ("Sub Server RTT", output.duration(round(rtts[1] * 1e9))),
                ("Actual Msgs/Sec", f"{count / took_s:,.0f}"),
                ("Minimum Latency", output.duration(max(ordered[0], 1))),
                ("Median Latency", output.duration(max(values[50], 1))),
                ("Maximum Latency", output.duration(max(ordered[-1], 1))),
            ],
            "Percentiles": [(f"{point:g}", output.duration(max(value, 1))) for point, value in values.items()],
        },
    )


async def _routed(sender: Any, receiver: Any, timeout_s: float) -> None:
    """Wait until messages of one connection reach the other."""
    probe = receiver.new_inbox()
    async with await receiver.subscribe(probe) as arriving:
        await receiver.flush()
        waiting = asyncio.ensure_future(arriving.next(timeout=timeout_s))
        while not waiting.done():
            await sender.publish(probe)
            await sender.flush()
            await asyncio.sleep(0.01)
        await waiting


def _write(file: str, content: bytes) -> None:
    Path(file).write_bytes(content)


@click.command(cls=SharedCommand, example="jetlake traffic 'orders.>' --count 1")
@click.argument("subjects", default=">")
@click.option("--interval", type=WAIT, default="1s", show_default=True, help="Time between two lines.")
@click.option("--count", type=click.IntRange(0), default=0, metavar="N", help="Stop after N lines.")
@json_option
@command
async def traffic(session: Session, subjects: str, interval: float, count: int, as_json: bool) -> None:
    """Count the messages of each kind on SUBJECTS every second until Ctrl-C."""
    names = ("requests", "js api", "js ack", "raft", "cluster", "system", "rest")
    seen: Counter[str] = Counter()

    def receive(message: Any) -> None:
        subject = message.raw_subject
        kind = next((kind for prefix, kind in _TRAFFIC if subject.startswith(prefix)), "")
        seen[kind or ("requests" if message.raw_reply else "rest")] += 1
        seen["bytes"] += len(message.data)

    async with await session.connect(stay=True) as client:
        await client.subscribe(subjects, receive)
        await client.flush()
        raise_refused(client)
        if not as_json:
            click.echo("".join(f"{name.title():>12}" for name in (*names, "bytes", "messages")))
        lines = 0
        while True:
            await asyncio.sleep(interval)
            row, total = dict(seen), sum(seen[name] for name in names)
            seen.clear()
            if as_json:
                click.echo(
                    msgspec.json.encode({**{name: row.get(name, 0) for name in (*names, "bytes")}, "messages": total})
                )
            else:
                cells = [f"{row.get(name, 0):,}" for name in names] + [output.size(row.get("bytes", 0)), f"{total:,}"]
                click.echo("".join(f"{cell:>12}" for cell in cells))
            lines += 1
            if lines == count:
                return


_TRAFFIC = (
    (b"$SYS.", "system"),
    (b"$JSC.", "cluster"),
    (b"$NRG.", "raft"),
    (b"$JS.ACK.", "js ack"),
    (b"$JS.API.", "js api"),
)


@click.command(cls=SharedCommand, example="jetlake top s1 --sort msgs_to --user sys --password secret")
@click.argument("name", required=False)
@click.option(
    "-n", "--conns", type=click.IntRange(1), default=1024, show_default=True, metavar="N", help="Most connections."
)
@click.option("-d", "--interval", type=WAIT, default="1s", show_default=True, help="Time between two views.")
@click.option(
    "--sort",
    type=click.Choice(
        ["cid", "start", "subs", "pending", "msgs_to", "msgs_from", "bytes_to", "bytes_from", "idle", "uptime"]
    ),
    default="cid",
    show_default=True,
    help="Sort clients by this.",
)
@click.option("-r", "--max-refresh", type=click.IntRange(0), default=0, metavar="N", help="Stop after N views.")
@json_option
@command
async def top(
    session: Session, name: str | None, conns: int, interval: float, sort: str, max_refresh: int, as_json: bool
) -> None:
    """Watch the clients of server NAME, or of all servers, until Ctrl-C; for users of the system account."""
    body = {"sort": sort, "limit": conns, "auth": True}
    before: dict[tuple[str, int], tuple[int, int]] = {}
    views, last = 0, time.monotonic()
    async with await session.connect(stay=True) as client:
        while True:
            answers = await collect(client, session.timeout_s, "CONNZ", body)
            found = [one for one in answers if name in (None, one["server"]["name"], one["server"]["id"])]
            if not found:
                raise JetlakeError(f"server {name} does not answer. List servers: jetlake server ls")
            passed, last = max(time.monotonic() - last, 1e-3), time.monotonic()
            _show_top(found, before, passed if views else 0, as_json)
            views += 1
            if views == max_refresh:
                return
            await asyncio.sleep(interval)


_TOP_COLUMNS = (
    *("Host", "Cid", "Name", "Account", "Subs", "Pending", "Msgs To", "Msgs From"),
    *("To / s", "From / s", "Lang", "Version", "Uptime"),
)


def _show_top(
    found: list[dict[str, Any]], before: dict[tuple[str, int], tuple[int, int]], passed_s: float, as_json: bool
) -> None:
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    rows = []
    for one in found:
        for each in one["data"].get("connections") or ():
            key = (one["server"]["id"], each["cid"])
            now = (each.get("out_msgs", 0), each.get("in_msgs", 0))
            old = before.get(key, now)
            before[key] = now
            rates = [f"{(new - past) / passed_s:,.0f}" if passed_s else "" for new, past in zip(now, old, strict=True)]
            rows.append(
                [
                    f"{each.get('ip', '')}:{each.get('port', '')}",
                    each["cid"],
                    each.get("name", ""),
                    each.get("account", ""),
                    output.count(each.get("subscriptions", 0)),
                    output.size(each.get("pending_bytes", 0)),
                    output.count(now[0]),
                    output.count(now[1]),
                    *rates,
                    each.get("lang", ""),
                    each.get("version", ""),
                    each.get("uptime", ""),
                ]
            )
    if sys.stdout.isatty():
        click.clear()
    names = ", ".join(one["server"]["name"] for one in found)
    output.print_table(
        f"{output.plural(len(rows), 'connection')} of {names}",
        _TOP_COLUMNS,
        rows,
        numbers=[1, 4, 5, 6, 7, 8, 9],
        spare=[11, 10, 12, 3, 5],
    )


@click.command(cls=SharedCommand, example="jetlake cheat kv")
@click.argument("topic", required=False)
@click.option("--sections", is_flag=True, help="List the topics.")
@json_option
@click.pass_context
def cheat(ctx: click.Context, topic: str | None, sections: bool, as_json: bool) -> None:
    """Print examples of all commands, or of the commands of TOPIC, such as kv."""
    topics = [name for name in sorted(COMMANDS) if topic in (None, name)]
    if not topics:
        fail(f"no examples of {topic!r}; use one of {', '.join(sorted(COMMANDS))}", EXIT_USAGE)
    if sections:
        output.print_names(topics, as_json)
        return
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    found: dict[str, list[tuple[str, str]]] = {}
    for name in topics:
        with suppress(click.ClickException):  # Another extra is not installed.
            made = root.get_command(ctx, name)
            if made is not None:
                found[name] = list(_examples(ctx, made))
    if as_json:
        output.print_json({name: [line for _, line in lines] for name, lines in found.items() if lines})
        return
    for name, lines in found.items():
        for text, line in lines:
            click.echo(f"# {text}\n{line}\n")
        if not lines and topic:
            click.echo(f"jetlake {name} --help")


def _examples(ctx: click.Context, made: click.Command) -> Any:
    """Yield what each command does and its example."""
    if getattr(made, "example", ""):
        yield made.get_short_help_str(100).rstrip("."), str(getattr(made, "example", ""))
    if isinstance(made, click.Group):
        for name in made.list_commands(ctx):
            inner = made.get_command(ctx, name)
            if inner is not None:
                yield from _examples(ctx, inner)


@click.group(cls=SharedGroup)
def audit() -> None:
    """Collect the reports of all servers in an archive, and check them for problems."""


_REPORTS = ("VARZ", "CONNZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "SUBSZ", "JSZ", "ACCOUNTZ", "HEALTHZ")


@audit.command("gather", example="jetlake audit gather --output audit.zip --user sys --password secret")
@click.option(
    "-o", "--output", "file", default="audit.zip", show_default=True, metavar="FILE", help="The archive to write."
)
@force_option
@json_option
@command
async def gather(session: Session, file: str, force: bool, as_json: bool) -> None:
    """Write what all servers report to a ZIP archive; for users of the system account."""
    if await asyncio.to_thread(Path(file).exists):
        confirm(f"Overwrite {file}?", force)
    packed = io.BytesIO()
    names: list[str] = []
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for report in _REPORTS:
            body: dict[str, Any] = {"details": True} if report == "HEALTHZ" else {}
            if report == "JSZ":
                body = {"accounts": True, "streams": True, "consumer": True, "config": True}
            for answer in await ask_servers(session, report, body):
                names.append(f"{answer['server']['name']}/{report.lower()}.json")
                archive.writestr(names[-1], msgspec.json.format(msgspec.json.encode(answer), indent=2))
    await asyncio.to_thread(_write, file, packed.getvalue())
    output.tell(f"Wrote {output.plural(len(names), 'report')} to {file}", {"file": file, "reports": names}, as_json)


@audit.command("analyze", example="jetlake audit analyze audit.zip")
@click.argument("archive", type=click.Path(dir_okay=False))
@json_option
def analyze(archive: str, as_json: bool) -> None:
    """Check an ARCHIVE of gather for problems; exits with 1 when a check fails."""
    try:
        with zipfile.ZipFile(archive) as opened:
            answers = {name: msgspec.json.decode(opened.read(name)) for name in opened.namelist()}
    except OSError as error:
        fail(f"{archive}: {error.strerror}")
    except (zipfile.BadZipFile, msgspec.DecodeError) as error:
        fail(f"{archive} is not an archive of `jetlake audit gather`: {error}")
    found = [(name, _faults(name.rpartition("/")[2].removesuffix(".json"), one)) for name, one in answers.items()]
    faults = [f"{name.partition('/')[0]}: {text}" for name, texts in found for text in texts]
    versions = {one["server"].get("ver", "") for one in answers.values()}
    if len(versions) > 1:
        faults.append(f"servers have different versions: {', '.join(sorted(versions))}")
    if as_json:
        output.print_json({"reports": len(answers), "faults": faults})
    else:
        for text in faults:
            click.echo(f"FAIL {output.printable(text)}")
        click.echo(f"{output.plural(len(answers), 'report')} checked, {output.plural(len(faults), 'fault')} found")
    if faults:
        raise SystemExit(1)


_CHECKS = (
    ("healthz", "Server Health", "/healthz of every server says ok"),
    ("varz", "Slow Consumers", "No client was disconnected for reading too slowly"),
    ("varz", "JetStream Usage", "Storage and memory are below 90 % of their limits"),
    ("jsz", "Replicas", "Replicas of streams are online and current"),
    ("jsz", "Lost Messages", "No stream has lost messages"),
    ("varz", "Versions", "All servers have the same version"),
)
"""What `analyze` looks for: the report, a name, and what should hold."""


@audit.command("checks", example="jetlake audit checks")
@json_option
def checks(as_json: bool) -> None:
    """List what `jetlake audit analyze` looks for."""
    if as_json:
        output.print_json([dict(zip(("report", "name", "holds"), check, strict=True)) for check in _CHECKS])
        return
    output.print_table("Audit Checks", ["Report", "Check", "What should hold"], [list(check) for check in _CHECKS])


def _faults(report: str, answer: dict[str, Any]) -> list[str]:
    """List what is wrong in one report."""
    data = answer.get("data") or {}
    found: list[str] = []
    if report == "healthz" and data.get("status") != "ok":
        found.append(f"not healthy: {data.get('error') or data.get('status')}")
    if report == "varz":
        if data.get("slow_consumers"):
            found.append(output.plural(data["slow_consumers"], "slow consumer"))
        usage, config = data.get("jetstream", {}).get("stats") or {}, data.get("jetstream", {}).get("config") or {}
        for field, limit in (("storage", "max_storage"), ("memory", "max_memory")):
            if config.get(limit, 0) > 0 and usage.get(field, 0) > 0.9 * config[limit]:
                found.append(f"JetStream {field} is {usage[field] * 100 // config[limit]} % full")
    if report == "jsz":
        for account in data.get("account_details") or ():
            for stream in account.get("stream_detail") or ():
                cluster = stream.get("cluster") or {}
                found += [
                    f"stream {stream['name']} replica {peer['name']} is {peer.get('lag', 0):,} operations behind"
                    for peer in cluster.get("replicas") or ()
                    if peer.get("offline") or not peer.get("current", True)
                ]
                if (stream.get("state") or {}).get("lost"):
                    found.append(f"stream {stream['name']} has lost messages")
    return found
