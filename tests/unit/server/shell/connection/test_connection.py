"""A connection without a socket: liveness, pressure, garbage, and how each ends."""

import asyncio
import gc
import weakref

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetlake.server.config.options import AccountOptions, Secret, User
from jetlake.server.shell.connection import peer_connection

HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'


async def test_pings_go_unanswered(make_server, connect, clock):
    server = make_server(ping_interval_s=60.0, ping_max=2)
    client = connect(server)
    await client.take()
    clock.advance(2)
    assert await client.take() == b"PING\r\n"
    clock.advance(60)
    assert await client.take() == b"PING\r\n"
    clock.advance(60)
    assert await client.take() == b"-ERR 'Stale Connection'\r\n"
    assert client.transport.ended
    assert server.statistics.stale_connections == 1
    assert not server.connections


async def test_an_active_client_is_not_pinged(make_server, connect, clock):
    server = make_server(ping_interval_s=60.0)
    client = connect(server)
    await client.take()
    clock.advance(2)
    clock.advance(0.005)
    client.send(b"PONG\r\n")
    assert client.connection.pings.rtt_ns == 5_000_000
    await client.take()
    for _ in range(5):
        clock.advance(59)
        client.send(b"SUB a 1\r\n")
        clock.advance(1)
    assert b"PING" not in await client.take()


async def test_authentication_timeout(make_server, connect, clock):
    server = make_server(token=Secret("t"), auth_timeout_s=2.0)
    late, known = connect(server), connect(server)
    known.send(b'CONNECT {"verbose":false,"auth_token":"t"}\r\n')
    clock.advance(1.9)
    assert await late.take() == b""
    clock.advance(0.2)
    assert await late.take() == b"-ERR 'Authentication Timeout'\r\n"
    assert b"-ERR" not in await known.take()
    assert list(server.connections.values()) == [known.connection]


async def test_deliveries_of_one_turn_leave_in_one_write(make_server, connect):
    server = make_server()
    reader = await connect(server).hello()
    writers = [await connect(server).hello() for _ in range(3)]
    reader.send(b"SUB a 1\r\n")
    await reader.take()
    for writer in writers:
        writer.send(b"PUB a 1\r\nx\r\n" * 10)
    assert reader.transport.written == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert reader.transport.written == [b"MSG a 1 1\r\nx\r\n" * 30]


async def test_a_slow_client_is_cut_off_without_a_word(make_server, connect):
    server = make_server(max_pending=100_000, max_payload=50_000)
    slow, writer = await connect(server).hello(), await connect(server).hello()
    slow.send(b"SUB a 1\r\n")
    slow.connection.pause_writing()
    for _ in range(3):
        writer.send(b"PUB a 40000\r\n" + b"x" * 40_000 + b"\r\n")
        await asyncio.sleep(0)
    # What waits is checked closely only when it is much.
    slow.connection.writer._press()
    assert slow.transport.aborted
    assert slow.transport.written == []
    assert server.statistics.slow_consumers == 1
    assert not writer.transport.closed
    assert any("Slow Consumer Detected: MaxPending of 100000 Exceeded" in line for line in server.log.lines)


async def test_max_pending_beyond_the_high_water_mark(make_server, connect):
    server = make_server(max_pending=4_000_000)
    slow, writer = await connect(server).hello(), await connect(server).hello()
    slow.send(b"SUB a 1\r\n")
    slow.connection.pause_writing()
    chunk = b"PUB a 500000\r\n" + b"x" * 500_000 + b"\r\n"
    for _ in range(7):
        await writer.send_when_read(chunk)
    assert not slow.transport.aborted
    await writer.send_when_read(chunk)
    assert slow.transport.aborted


async def test_publishers_wait_for_a_client_that_is_nearly_full(make_server, connect):
    server = make_server(max_pending=4_000_000)
    slow, writer = await connect(server).hello(), await connect(server).hello()
    slow.send(b"SUB a 1\r\n")
    slow.connection.pause_writing()
    for _ in range(7):
        await writer.send_when_read(b"PUB a 500000\r\n" + b"x" * 500_000 + b"\r\n")
    assert not writer.transport.is_reading
    assert server.statistics.stalled > 0
    await asyncio.sleep(0.02)
    assert writer.transport.is_reading


async def test_a_congested_client_is_relieved(make_server, connect):
    server = make_server()
    client, writer = await connect(server).hello(), await connect(server).hello()
    client.send(b"SUB a 1\r\n")
    client.connection.pause_writing()
    assert client.connection.congested
    writer.send(b"PUB a 1\r\nx\r\n")
    assert await client.take() == b""
    client.connection.resume_writing()
    assert not client.connection.congested
    assert await client.take() == b"MSG a 1 1\r\nx\r\n"


async def test_much_in_one_turn_is_congestion_until_it_is_written(make_server, connect):
    server = make_server()
    client = await connect(server).hello()
    client.connection.send(b"x" * 2_000_000)
    assert client.connection.congested
    await client.take()
    assert not client.connection.congested


async def test_the_write_deadline(make_server, connect, clock):
    server = make_server(write_deadline_s=10.0)
    client = await connect(server).hello()
    client.connection.pause_writing()
    clock.advance(9)
    client.connection.resume_writing()
    client.connection.pause_writing()
    clock.advance(9.5)
    assert not client.transport.aborted
    clock.advance(1)
    assert client.transport.aborted


async def test_the_socket_lingers_after_an_error(make_server, connect):
    server = make_server()
    client = connect(server)
    client.send(b"NONSENSE\r\n")
    assert await client.take() == b"-ERR 'Unknown Protocol Operation'\r\n"
    assert client.transport.ended
    assert not client.transport.closed
    client.send(b"more of it")
    assert await client.take() == b""


async def test_frames_before_a_violation_count(make_server, connect):
    server = make_server()
    client = await connect(server).hello()
    client.send(b"SUB a 1\r\nPUB a 2\r\nhi\r\nNONSENSE\r\nPUB a 2\r\nno\r\n")
    assert await client.take() == b"MSG a 1 2\r\nhi\r\n-ERR 'Unknown Protocol Operation'\r\n"


async def test_leaving_takes_everything_along(make_server, connect):
    server = make_server()
    client = await connect(server).hello()
    client.send(b"SUB a 1\r\nSUB b.* q 2\r\n")
    before = server.accounts["$G"].interest_count
    client.connection.eof_received()
    client.connection.connection_lost(None)
    assert server.accounts["$G"].interest_count == before - 2
    assert not server.connections
    assert server.closed_connections[-1] is client.connection


async def test_subscriptions_do_not_move_into_another_account(make_server, connect):
    users = (User(name="a", password=Secret("p"), account="A"), User(name="b", password=Secret("p"), account="B"))
    accounts = (AccountOptions(name="A"), AccountOptions(name="B"))
    server = make_server(users=users, accounts=accounts, no_auth_user="a")
    client, other = connect(server), await connect(server).hello()
    client.send(b"SUB x 1\r\n")
    client.send(b'CONNECT {"verbose":false,"user":"b","pass":"p"}\r\nSUB y 2\r\n')
    await client.take()
    before = server.accounts["A"].interest_count
    other.send(b"PUB x 0\r\n\r\nPUB y 0\r\n\r\n")
    server.accounts["B"].publish(b"y", b"", b"", b"")
    assert await client.take() == b"MSG y 2 0\r\n\r\n"
    client.connection.connection_lost(None)
    assert server.accounts["A"].interest_count == before
    assert not server.accounts["B"].route(b"y").recipients


async def test_counters(make_server, connect):
    server = make_server()
    client = await connect(server).hello()
    client.send(b"SUB a 1\r\nUNSUB 1 2\r\nSUB b 2\r\n" + b"PUB a 3\r\nabc\r\n" * 3)
    client.send(b"HPUB b 12 14\r\nNATS/1.0\r\n\r\nhi\r\n")
    await client.take()
    connection = client.connection
    assert (connection.in_msgs, connection.in_bytes, connection.out_msgs, connection.out_bytes) == (4, 23, 3, 20)
    connection.connection_lost(None)
    totals = server.statistics.closed
    assert (totals.in_msgs, totals.in_bytes, totals.out_msgs, totals.out_bytes) == (4, 23, 3, 20)


async def test_a_defect_costs_one_connection_and_one_line(make_server, connect):
    server = make_server()
    client, other = await connect(server).hello(), await connect(server).hello()

    def fail(*arguments):
        raise RuntimeError("boom")

    server.accounts["$G"].listen(b"bad", fail)
    client.send(b"PUB bad 0\r\n\r\n")
    assert client.transport.ended
    assert server.defects == 1
    (line,) = [line for line in server.log.lines if "internal error" in line]
    assert "RuntimeError: boom (test_connection.py" in line
    other.send(b"PING\r\n")
    assert await other.take() == b"PONG\r\n"


async def test_the_trace_shows_frames_and_hides_secrets(make_server, connect):
    server = make_server(trace=True, max_traced_msg_len=4)
    server.log.tracing = True
    client = connect(server)
    client.send(b'CONNECT {"verbose":false,"user":"ann","pass":"hunter2","auth_token":"hunter3"}\r\n')
    client.send(b"SUB a 1\r\nPUB a r 7\r\nlongone\r\nPING\r\n")
    await client.take()
    text = "\n".join(line for line in server.log.lines if line.startswith("[TRC]"))
    assert "hunter" not in text
    for shown in ("<<- [CONNECT", '"[REDACTED]"', "<<- [SUB a 1]", "<<- [PUB a r 7 'long...']", "->> [MSG a 1 r 7]"):
        assert shown in text
    assert "<<- [PING]" in text
    assert "->> [PONG]" in text


VERBS = [
    b"PUB",
    b"HPUB",
    b"SUB",
    b"UNSUB",
    b"CONNECT",
    b"PING",
    b"PONG",
    b"INFO",
    b"+OK",
    b"-ERR",
    b"MSG",
    b"pub",
    b"X",
]
WORDS = st.sampled_from(
    [b"a", b"a.*", b">", b"a..b", b"*", b"1", b"0", b"-1", b"5", b"99999999999", b"{}", b'{"verbose":true}', b"_sys_",
     b"$JS.ACK.x", b"_INBOX.1", b"\x00", b"\xff\xfe", b'{"protocol":7}', b'{"pass":[1]}', b"$SYS.REQ.USER.INFO"]
)  # fmt: skip
FRAMES = st.tuples(
    st.sampled_from(VERBS),
    st.lists(WORDS, max_size=5),
    st.sampled_from([b"\r\n", b"\n", b"", b"\r\n\r\n", b"\r\nhello\r\n", b"\r\nx"]),
).map(lambda frame: b" ".join([frame[0], *frame[1]]) + frame[2])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(pieces=st.lists(FRAMES | st.binary(max_size=40), max_size=12), cuts=st.lists(st.integers(0, 200), max_size=4))
async def test_any_bytes_leave_the_server_whole(make_server, connect, pieces, cuts):
    server = make_server()
    client, other = connect(server), await connect(server).hello()
    data = b"".join(pieces)
    position = 0
    for cut in sorted(cuts):
        client.send(data[position:cut])
        position = max(position, cut)
    client.send(data[position:])
    await client.take()
    client.connection.connection_lost(None)
    other.send(b"SUB fine 1\r\nPUB fine 2\r\nok\r\nPING\r\n")
    assert (await other.take()).endswith(b"MSG fine 1 2\r\nok\r\nPONG\r\n")
    assert server.defects == 0, server.log.lines
    assert list(server.connections.values()) == [other.connection]


@pytest.mark.parametrize("first", [b"\x16\x03\x01", b"\x16" * 100, b"\x00", b"G"])
async def test_tls_bytes_on_a_plain_port(make_server, connect, first):
    server = make_server()
    client = connect(server)
    client.send(first + b"\r\n")
    assert b"Unknown Protocol Operation" in await client.take()


async def test_a_connection_is_freed_when_monitoring_forgets_it(make_server, connect):
    server = make_server(users=(User(name="a", password=Secret("p")),))
    gc.collect()
    gc.disable()
    try:
        client = await connect(server).hello(user="a", **{"pass": "p"})
        client.send(b"SUB a 1\r\nSUB b.* q 2\r\nPUB a 1\r\nx\r\nPUB b.c r 1\r\nx\r\nUNSUB 2 5\r\nPUB a 5\r\nin")
        assert b"MSG a 1 1\r\nx\r\n" in await client.take()
        client.connection.connection_lost(None)
        (remembered,) = server._connection_table.recent
        assert (remembered.in_msgs, remembered.session.identity.user) == (2, "a")
        parts = [remembered, remembered.handshake, remembered.writer, remembered._reader]
        references = list(map(weakref.ref, parts))
        server._connection_table.recent.clear()
        del client, remembered, parts
        await asyncio.sleep(0)
        assert [reference() for reference in references] == [None] * len(references)
    finally:
        gc.enable()


async def test_a_socket_whose_peer_takes_nothing_is_cut_off_in_time(make_server, connect, monkeypatch):
    client = connect(make_server(write_deadline_s=7.0))
    await client.take()
    due = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *given: due.append(given))
    client.transport.buffered = 5
    client.connection.end("Stale Connection", reason="Stale Connection")
    _, close, *arguments = due.pop()
    close(*arguments)
    assert (client.transport.closed, client.transport.aborted) == (True, False)
    delay_s, abort = due.pop()
    abort()
    assert delay_s == 7.0
    assert client.transport.aborted


async def test_a_client_that_sends_no_more_and_takes_nothing_is_cut_off_in_time(make_server, connect, monkeypatch):
    client = connect(make_server(write_deadline_s=7.0))
    await client.take()
    due = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *given: due.append(given))
    client.transport.buffered = 5
    assert client.connection.eof_received() is False
    ((delay_s, abort),) = due
    assert delay_s == 7.0
    abort()
    assert client.transport.aborted


async def test_a_stop_cuts_off_clients_that_take_nothing(make_server, connect, monkeypatch):
    monkeypatch.setattr(peer_connection, "_STOP_S", 0.0)
    server = make_server()
    client = connect(server)
    await client.take()
    await server._connection_table.close()
    assert client.transport.aborted
