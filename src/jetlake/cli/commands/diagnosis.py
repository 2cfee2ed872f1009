"""`jetlake trace`, `latency`, `traffic`, `top` and `cheat`: where messages go, how fast, who sends them."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.command_table import COMMANDS
from jetlake.cli.message_content import headers_of, headers_option
from jetlake.cli.session import (
    EXIT_USAGE,
    Session,
    command,
    fail,
    guarded,
    json_option,
    raise_refused,
    session_of,
)
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.system import collect
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
        raise JetlakeError("the server sent no trace; it must be jetlake, or nats-server 2.11 or later")
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
        click.echo()
        output.print_facts("Egress Count:", {"": [(kind, number) for kind, number in counted.most_common()]})


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
    "-n",
    "--conns",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    metavar="N",
    help="Maximum number of connections.",
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
@click.option("--lookup", is_flag=True, help="Show the names of the clients' machines, as DNS knows them.")
@click.option("-b", "--raw", is_flag=True, help="Print numbers and bytes as they are.")
@click.option("--subs", is_flag=True, help="Also show the subjects of the subscriptions.")
@click.option("-o", "--output", "file", metavar="FILE", help="Write the first view to this file, and stop.")
@click.option(
    "-l", "--delimiter", default=",", show_default=True, metavar="TEXT", help="What separates columns in FILE."
)
@json_option
@command
async def top(
    session: Session,
    name: str | None,
    conns: int,
    interval: float,
    sort: str,
    max_refresh: int,
    lookup: bool,
    raw: bool,
    subs: bool,
    file: str | None,
    delimiter: str,
    as_json: bool,
) -> None:
    """Watch the clients of server NAME, or of all servers, until Ctrl-C; for users of the system account."""
    body = {"sort": sort, "limit": conns, "auth": True, "subscriptions": subs}
    before: dict[tuple[str, int], tuple[int, int]] = {}
    hosts: dict[str, str] = {}
    views, last = 0, time.monotonic()
    async with await session.connect(stay=True) as client:
        while True:
            answers = await collect(client, session.timeout_s, "CONNZ", body)
            found = [one for one in answers if name in (None, one["server"]["name"], one["server"]["id"])]
            if not found:
                raise JetlakeError(f"server {name} does not answer. List servers: jetlake server ls")
            passed, last = max(time.monotonic() - last, 1e-3), time.monotonic()
            if lookup:
                await _look_up(
                    hosts, {each.get("ip", "") for one in found for each in one["data"].get("connections") or ()}
                )
            if as_json:
                click.echo(msgspec.json.encode(found))
            else:
                rows = _top_rows(found, before, passed if views else 0, hosts, is_raw=raw or file is not None)
                if file is not None:
                    await asyncio.to_thread(_write, file, _delimited([_TOP_COLUMNS, *rows], delimiter, subs))
                    click.echo(f"Wrote {output.plural(len(rows), 'connection')} to {file}")
                    return
                _show_top(", ".join(one["server"]["name"] for one in found), rows, subs)
            views += 1
            if views == max_refresh:
                return
            await asyncio.sleep(interval)


_TOP_COLUMNS = (
    *("Host", "Cid", "Name", "Account", "Subs", "Pending", "Msgs To", "Msgs From"),
    *("To / s", "From / s", "Lang", "Version", "Uptime", "Subscriptions"),
)


async def _look_up(hosts: dict[str, str], addresses: set[str]) -> None:
    """Add the names of addresses; of one without a name, the address itself."""

    def name_of(address: str) -> str:
        try:
            return socket.gethostbyaddr(address)[0]
        except OSError:
            return address

    fresh = sorted(addresses - hosts.keys())
    found = await asyncio.gather(*(asyncio.to_thread(name_of, address) for address in fresh))
    hosts.update(zip(fresh, found, strict=True))


def _top_rows(
    found: list[dict[str, Any]],
    before: dict[tuple[str, int], tuple[int, int]],
    passed_s: float,
    hosts: dict[str, str],
    *,
    is_raw: bool,
) -> list[list[str]]:
    count, size = (str, str) if is_raw else (output.count, output.size)
    rows = []
    for one in found:
        for each in one["data"].get("connections") or ():
            key = (one["server"]["id"], each["cid"])
            now = (each.get("out_msgs", 0), each.get("in_msgs", 0))
            old = before.get(key, now)
            before[key] = now
            rates = [
                count(round((new - past) / passed_s)) if passed_s else "" for new, past in zip(now, old, strict=True)
            ]
            address = each.get("ip", "")
            rows.append(
                [
                    f"{hosts.get(address, address)}:{each.get('port', '')}",
                    str(each["cid"]),
                    each.get("name", ""),
                    each.get("account", ""),
                    count(each.get("subscriptions", 0)),
                    size(each.get("pending_bytes", 0)),
                    count(now[0]),
                    count(now[1]),
                    *rates,
                    each.get("lang", ""),
                    each.get("version", ""),
                    each.get("uptime", ""),
                    " ".join(each.get("subscriptions_list") or ()),
                ]
            )
    return rows


def _delimited(rows: Sequence[Sequence[str]], delimiter: str, subs: bool) -> bytes:
    shown = (row if subs else row[:-1] for row in rows)
    return "".join(f"{delimiter.join(map(output.printable, row))}\n" for row in shown).encode()


def _show_top(names: str, rows: list[list[str]], subs: bool) -> None:
    if sys.stdout.isatty():
        click.clear()
    output.print_table(
        f"{output.plural(len(rows), 'connection')} of {names}",
        _TOP_COLUMNS if subs else _TOP_COLUMNS[:-1],
        rows if subs else [row[:-1] for row in rows],
        numbers=[1, 4, 5, 6, 7, 8, 9],
        spare=[11, 10, 12, 3, 5],
    )


@click.command(cls=SharedCommand, example="jetlake cheat kv")
@click.argument("topic", required=False)
@click.option("--sections", is_flag=True, help="List the topics.")
@click.option("--save", "folder", type=click.Path(file_okay=False), help="Write a file for each topic to this folder.")
@json_option
@click.pass_context
def cheat(ctx: click.Context, topic: str | None, sections: bool, folder: str | None, as_json: bool) -> None:
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
    if folder is not None:
        guarded(lambda: _save_examples(Path(folder), found), session_of(ctx))
    if as_json:
        output.print_json({name: [line for _, line in lines] for name, lines in found.items() if lines})
        return
    if folder is not None:
        click.echo(f"Wrote {output.plural(sum(map(bool, found.values())), 'topic')} to {folder}")
        return
    for name, lines in found.items():
        for text, line in lines:
            click.echo(_example(text, line))
        if not lines and topic:
            click.echo(f"jetlake {name} --help")


def _example(text: str, line: str) -> str:
    return f"# {text}\n{line}\n"


def _save_examples(folder: Path, found: dict[str, list[tuple[str, str]]]) -> None:
    """Write the examples in the form that the program `cheat` reads: a file for each topic."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in found.items():
        if lines:
            (folder / name).write_text("\n".join(_example(text, line) for text, line in lines))


_WHOLE_SENTENCE = 1000
"""More characters than the first sentence of any help text."""


def _examples(ctx: click.Context, made: click.Command) -> Iterator[tuple[str, str]]:
    """Yield what each command does and its example."""
    if getattr(made, "example", ""):
        yield made.get_short_help_str(_WHOLE_SENTENCE).rstrip("."), str(getattr(made, "example", ""))
    if isinstance(made, click.Group):
        for name in made.list_commands(ctx):
            inner = made.get_command(ctx, name)
            if inner is not None:
                yield from _examples(ctx, inner)
