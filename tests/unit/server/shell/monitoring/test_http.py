"""Monitoring without a socket: the HTTP of it, the metrics, and queries of any kind."""

import asyncio
import errno
import json
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetlake import platform
from jetlake.server import Server
from jetlake.server.shell.monitoring import connection_reports, http
from jetlake.server.shell.monitoring.http import Monitoring, _Exchange
from jetlake.server.shell.monitoring.query import BadQueryError, Query
from jetlake.server.shell.monitoring.server_report import format_uptime
from jetlake.store.steps import finish


class Wire:
    """The transport of an HTTP exchange."""

    def __init__(self):
        self.written = b""
        self.closed = False
        self.is_read = True
        self.unwritten_bytes = 0

    def write(self, data):
        self.written += data

    def pause_reading(self):
        self.is_read = False

    def resume_reading(self):
        self.is_read = True

    def get_write_buffer_size(self):
        return self.unwritten_bytes

    def abort(self):
        self.closed, self.unwritten_bytes = True, 0

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def get_extra_info(self, _name):
        return ("127.0.0.1", 1)


def ask(server, subject, body):
    """Send an API request and carry it out whole, also where a slow machine would take several turns."""
    server.accounts["$G"].js.receive(subject, b"", b"", body, None)
    server.engine.long_work.finish()


def monitor(server):
    """Monitoring of a server that listens nowhere."""
    return Monitoring(server, server.log, server._defects.report)


@pytest.fixture
def exchange(make_server):
    def make(server=None, **options):
        exchange = _Exchange(monitor(server or make_server(**options)))
        wire = Wire()
        exchange.connection_made(wire)
        return exchange, wire

    return make


def answers(data):
    """Status and body of each answer."""
    found = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        size = int(re.search(rb"Content-Length: (\d+)", head)[1])
        found.append((int(head.split(b" ")[1]), rest[:size]))
        data = rest[size:]
    return found


async def settle(web):
    """Let so many turns pass that every request which may be answered has been."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert not web._is_answering


async def test_requests_one_after_the_other(exchange):
    web, wire = exchange()
    request = (
        b"GET /varz HTTP/1.1\r\nHost: localhost:8222\r\n\r\nGET /healthz HTTP/1.1\r\n\r\nGET /nope HTTP/1.1\r\n\r\n"
    )
    for position in range(0, len(request), 7):
        web.data_received(request[position : position + 7])
    await settle(web)
    statuses = answers(wire.written)
    assert [status for status, _ in statuses] == [200, 200, 404]
    assert json.loads(statuses[0][1])["connections"] == 0
    assert not wire.closed
    web.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 200),
        (b"POST /varz HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET /varz HTTP/1.1\r\nHost: a.stranger\r\n\r\n", 403),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /varz HTTP/9.9\r\n\r\n", 400),
        (b"GET /" + b"x" * 20_000, 431),
        (b"\x16\x03\x01\r\n\r\n", 400),
    ],
)
async def test_requests_that_end_the_connection(exchange, request_, status):
    web, wire = exchange()
    web.data_received(request_)
    await settle(web)
    assert wire.written.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in wire.written
    assert wire.closed


async def test_requests_in_one_read_take_a_turn_each(exchange):
    web, wire = exchange()
    web.data_received(b"GET /varz HTTP/1.1\r\n\r\n" * 100)
    most = turns = 0
    while (answered := wire.written.count(b"HTTP/1.1 200")) < 100:
        assert not wire.is_read, "more may wait in the socket than in memory"
        await asyncio.sleep(0)
        turns += 1
        most = max(most, wire.written.count(b"HTTP/1.1 200") - answered)
    assert (most, turns) == (1, 100)
    assert wire.is_read
    web.close()


async def test_requests_of_many_connections_take_turns(make_server):
    monitoring = monitor(make_server())
    wires, webs = [Wire() for _ in range(20)], [_Exchange(monitoring) for _ in range(20)]
    for wire, web in zip(wires, webs, strict=True):
        web.connection_made(wire)
        web.data_received(b"GET /varz HTTP/1.1\r\n\r\n")
    await asyncio.sleep(0)
    assert sum(bool(wire.written) for wire in wires) == 1
    while not all(wire.written for wire in wires):
        await asyncio.sleep(0)
    for web in webs:
        web.close()


async def test_a_client_that_reads_no_answers_gets_no_more_and_is_cut_off(exchange):
    web, wire = exchange()
    web.pause_writing()
    wire.unwritten_bytes = 200_000
    web.data_received(b"GET /varz HTTP/1.1\r\n\r\n" * 2)
    await settle(web)
    assert (wire.written, wire.is_read) == (b"", False)
    web._time_out()
    assert not wire.closed, "it had the time to read a part"
    wire.unwritten_bytes = 100_000
    web._time_out()
    assert not wire.closed, "it has read a part"
    wire.unwritten_bytes = 0
    web.resume_writing()
    await settle(web)
    assert wire.written.count(b"HTTP/1.1 200") == 2
    assert wire.is_read
    wire.unwritten_bytes = 100_000
    web._time_out()
    assert wire.closed, "and then no more"


async def test_head_has_no_body(exchange):
    web, wire = exchange()
    web.data_received(b"HEAD /healthz HTTP/1.1\r\n\r\n")
    await settle(web)
    assert wire.written.endswith(b"\r\n\r\n")
    assert b"Content-Length: 15" in wire.written
    web.close()


async def test_base_path(exchange):
    web, wire = exchange(http_base_path="/nats")
    web.data_received(b"GET /nats/varz HTTP/1.1\r\n\r\nGET /nats/ HTTP/1.1\r\n\r\n")
    await settle(web)
    assert [status for status, _ in answers(wire.written)] == [200, 200]
    web.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(
    st.sampled_from(
        ["varz", "connz", "jsz", "subsz", "healthz", "accountz", "accstatz", "routez", "leafz", "metrics", ""]
    ),
    st.text(max_size=30)
    | st.sampled_from(["sort=rtt", "limit=0", "subs=detail", "state=any", "acc=$G", "cid=5", "test=>"]),
)
async def test_any_query_is_answered(make_server, connect, path, query):
    server = make_server()
    await connect(server).hello()
    status, _, body = finish(monitor(server).answer(f"/{path}?{query}"))
    assert status in (200, 400)
    assert body
    assert server.defects == 0


@settings(deadline=None)
@given(
    st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b'{"limit":"x"}', b'{"subscriptions":true,"account":"A"}'])
)
def test_any_body_is_a_query_or_refused(body):
    try:
        query = Query.from_json(body)
    except BadQueryError:
        return
    assert isinstance(query.text("acc"), str)


def test_queries_over_nats_use_their_own_spelling():
    query = Query.from_json(b'{"subscriptions_detail":true,"account":"A","limit":5,"streams":true}')
    assert (query.text("subs"), query.text("acc"), query.number("limit", 0), query.flag("streams")) == (
        "detail",
        "A",
        5,
        True,
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (61, "1m1s"), (3600, "1h0m0s"), (90_061, "1d1h1m1s"), (31_536_000, "1y0d0h0m0s")],
)
def test_uptime(seconds, text):
    assert format_uptime(seconds * 1_000_000_000) == text


METRIC = re.compile(r'([a-z_]+)(\{[a-z]+="(?:[^"\\]|\\.)*"(?:,[a-z]+="(?:[^"\\]|\\.)*")*\})? (-?[0-9.e+]+|\+Inf)')


async def test_metrics(make_server, connect):
    server = make_server()
    client = await connect(server).hello()
    client.send(b"SUB a 1\r\nPUB a 5\r\nhello\r\n")
    await client.take()
    status, kind, body = finish(monitor(server).answer("/metrics"))
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    lines = body.decode().splitlines()
    assert all(line.startswith("# ") or METRIC.fullmatch(line) for line in lines)
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values["jetlake_messages_received_total"] == values["jetlake_messages_sent_total"] == "1"
    assert values["jetlake_bytes_received_total"] == "5"
    assert values["jetlake_connections"] == "1"
    assert values["jetlake_slow_consumers_total"] == "0"


async def test_metrics_of_streams(tmp_path):
    async with Server(tmp_path) as server:
        config = json.dumps({"name": "S1", "subjects": ["s"]}).encode()
        ask(server, b"$JS.API.STREAM.CREATE.S1", config)
        consumer = json.dumps({"stream_name": "S1", "config": {"durable_name": "C", "ack_policy": "explicit"}}).encode()
        ask(server, b"$JS.API.CONSUMER.DURABLE.CREATE.S1.C", consumer)
        for _ in range(3):
            server.accounts["$G"].publish(b"s", b"", b"", b"hello")
        server.engine.flush()
        text = finish(monitor(server).answer("/metrics"))[2].decode()
    assert 'jetlake_stream_messages{account="$G",stream="S1"} 3\n' in text
    assert 'jetlake_stream_bytes{account="$G",stream="S1"} ' in text
    assert 'jetlake_consumer_pending{account="$G",stream="S1",consumer="C"} 3\n' in text
    assert 'jetlake_consumer_redelivered{account="$G",stream="S1",consumer="C"} 0\n' in text
    assert 'jetlake_fsync_seconds_bucket{le="+Inf"}' in text
    assert "jetlake_streams 1\n" in text


async def test_metrics_of_many_consumers_take_many_turns_and_the_next_request_waits(tmp_path, exchange):
    async with Server(tmp_path) as server:
        ask(server, b"$JS.API.STREAM.CREATE.S", b'{"name":"S","subjects":["s"],"storage":"memory"}')
        for number in range(20):
            config = b'{"stream_name":"S","config":{"name":"c%d","mem_storage":true}}' % number
            ask(server, b"$JS.API.CONSUMER.CREATE.S.c%d" % number, config)
        server.engine_loop.work.slice_ns = 0
        web, wire = exchange(server)
        web.data_received(b"GET /metrics HTTP/1.1\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n")
        turns = 0
        while wire.written.count(b"HTTP/1.1 200") < 2:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 20
        (_, page), (_, health) = answers(wire.written)
        assert page.count(b"\njetlake_consumer_waiting{") == 20
        assert json.loads(health) == {"status": "ok"}


@pytest.mark.parametrize(
    ("target", "rows"),
    [
        (b"/jsz?streams=1", 40),
        (b"/jsz?consumers=1", 60),
        (b"/connz?subs=detail", 20),
        (b"/connz?subs=1", 20),
        (b"/healthz", 40),
        (b"/subsz?subs=1", 20),
    ],
)
async def test_a_report_of_many_rows_takes_many_turns(target, rows, tmp_path, exchange, monkeypatch):
    monkeypatch.setattr(connection_reports, "_ITEMS_PER_STEP", 1)
    async with Server(tmp_path) as server:
        for number in range(40):
            config = b'{"name":"S%d","subjects":["s%d"],"storage":"memory"}' % (number, number)
            ask(server, b"$JS.API.STREAM.CREATE.S%d" % number, config)
        for number in range(20):
            config = b'{"stream_name":"S1","config":{"name":"c%d","mem_storage":true}}' % number
            ask(server, b"$JS.API.CONSUMER.CREATE.S1.c%d" % number, config)
        client = await asyncio.open_connection("127.0.0.1", server.port)
        client[1].write(b"CONNECT {}\r\n" + b"".join(b"SUB a.%d %d\r\n" % (n, n) for n in range(20)) + b"PING\r\n")
        while await client[0].readline() != b"PONG\r\n":
            pass
        server.engine_loop.work.slice_ns = 0
        web, wire = exchange(server)
        web.data_received(b"GET " + target + b" HTTP/1.1\r\n\r\n")
        turns = 0
        while not wire.written:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= rows
        ((_, body),) = answers(wire.written)
        report = json.loads(body)
        if b"/jsz" in target:
            (account,) = report["account_details"]
            assert [stream["name"] for stream in account["stream_detail"]] == sorted(f"S{n}" for n in range(40))
            consumers = [stream.get("consumer_detail", []) for stream in account["stream_detail"]]
            assert sum(map(len, consumers)) == rows - 40
        elif target == b"/connz?subs=detail":
            assert len(report["connections"][0]["subscriptions_list_detail"]) == 20
        elif target == b"/connz?subs=1":
            assert report["connections"][0]["subscriptions_list"] == [f"a.{n}" for n in range(20)]
        elif target == b"/healthz":
            assert report == {"status": "ok"}
        else:
            assert report["total"] == len(report["subscriptions_list"]) == 20
        client[1].close()


async def test_a_long_report_is_not_indented(tmp_path, exchange, monkeypatch):
    async with Server(tmp_path) as server:
        _, _, short = finish(monitor(server).answer("/jsz"))
        monkeypatch.setattr(http, "_INDENTED_MAX", 100)
        _, _, long = finish(monitor(server).answer("/jsz"))
        assert b"\n" in short and b"\n" not in long
        assert json.loads(short).keys() == json.loads(long).keys()


async def test_a_disk_that_fails_is_told_to_who_watches_until_the_stream_is_deleted(tmp_path, monkeypatch, caplog):
    def fail(handle):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with Server(tmp_path) as server:
        config = json.dumps({"name": "S1", "subjects": ["s"]}).encode()
        ask(server, b"$JS.API.STREAM.CREATE.S1", config)
        made = asyncio.Event()
        server.engine.commit.when_settled(made.set)
        server.engine_loop.schedule()
        await made.wait()
        assert finish(monitor(server).answer("/healthz"))[0] == 200
        monkeypatch.setattr(platform, "sync_data", fail)
        for _ in range(3):
            server.accounts["$G"].publish(b"s", b"", b"", b"hello")
            server.engine_loop.schedule()
            while server.engine.commit.wants_sync() or not server.engine.commit.failures:
                await asyncio.sleep(0)
        status, _, body = finish(monitor(server).answer("/healthz"))
        assert status == 503
        assert json.loads(body)["error"] == (
            "JetStream stream S1 of account $G: cannot make the stream's log safe: input/output error"
        )
        assert "jetlake_disk_failures 1\n" in finish(monitor(server).answer("/metrics"))[2].decode()
        monkeypatch.undo()
        ask(server, b"$JS.API.STREAM.DELETE.S1", b"")
        assert finish(monitor(server).answer("/healthz"))[0] == 200
        assert "jetlake_disk_failures 0\n" in finish(monitor(server).answer("/metrics"))[2].decode()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == [
        "JetStream - cannot write stream S1 of account $G to disk; retrying: "
        "cannot make the stream's log safe: input/output error"
    ]


async def test_a_defect_of_a_report_is_a_line_in_the_log(make_server):
    server = make_server()
    monitoring = monitor(server)
    server.accounts["broken"] = None
    status, _, body = finish(monitoring.answer("/subsz"))
    assert (status, body) == (500, b"internal error")
    assert server.defects == 1
