"""A leaf connection: the handshake, what is announced, and how it ends."""

import asyncio
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetlake.server.config.leaf_options import LeafOptions, LeafTls
from jetlake.server.shell.connection import peer_connection
from jetlake.server.shell.leaf.leaf_nodes import LeafNodes
from tests.support.shell import Client


def loop_subject(hub):
    return hub.announcements.loop_subject


async def test_nothing_is_announced_before_the_hub_has_accepted(hub, make_server):
    server = make_server()
    client = await Client(server).hello()
    client.send(b"SUB a.* 1\r\nSUB w q 2\r\nSUB w q 3\r\nSUB $SYS.x 4\r\nSUB $KV.b.k 5\r\n")
    end = hub(server=server)
    end.send_info(info_on_connect=True)
    assert await end.take() == b'CONNECT {"to":"hub"}\r\n'
    assert not end.connection.is_open
    end.send_info(connect_info=True)
    lines = (await end.take()).split(b"\r\n")
    assert set(lines) == {b"LS+ " + loop_subject(end), b"LS+ a.*", b"LS+ w q 2", b""}
    assert end.connection.is_open
    client.send(b"SUB a.* 6\r\nSUB w q 7\r\nUNSUB 2\r\nUNSUB 1\r\n")
    assert await end.take() == b"LS+ w q 3\r\nLS+ w q 2\r\n"
    client.send(b"UNSUB 6\r\nUNSUB 3\r\nUNSUB 7\r\n")
    assert await end.take() == b"LS- a.*\r\nLS+ w q 1\r\nLS- w q\r\n"


async def test_a_hub_that_answers_nothing_to_connect_is_joined_at_once(hub):
    end = hub()
    end.send_info()
    assert (await end.take()).startswith(b'CONNECT {"to":"hub"}\r\nLS+ ')


@pytest.mark.parametrize("fields", [{"client_id": 0}, {"leafnode_urls": []}, {"client_id": "x"}])
async def test_a_port_for_others_is_left(hub, fields):
    end = hub()
    end.send_info(**fields)
    assert end.connection.closed
    assert end.connection.ended.done()
    assert end.transport.closed


async def test_a_hub_that_says_nothing_is_left(hub, clock):
    silent, half = hub(), hub()
    half.send_info(info_on_connect=True)
    clock.advance(1)
    assert silent.connection.closed
    assert "waits for INFO" in silent.connection.reason
    clock.advance(1)
    assert "waits for the answer to CONNECT" in half.connection.reason


async def test_tls_does_not_begin_on_a_connection_that_is_closed_meanwhile(hub):
    end = hub(tls=LeafTls(insecure=True))
    end.send_info(tls_required=True)
    end.connection.drop("gone")
    # The task ends without touching the transport, which takes no TLS.
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
    assert end.connection.reason == "gone"


async def test_a_loop_is_told_and_ends_the_connection(hub):
    end = await hub().join()
    end.send(b"LS+ $LDS.other\r\nLS+ " + loop_subject(end) + b"\r\nLS+ late\r\n")
    assert b'-ERR \'Loop detected for leafnode account="$G"' in await end.take()
    assert "Loop detected" in end.connection.reason
    assert end.link.subjects == []


async def test_pings_are_answered_and_sent(hub, clock):
    end = await hub().join()
    end.send(b"PING\r\n")
    assert await end.take() == b"PONG\r\n"
    clock.advance(2)
    assert await end.take() == b"PING\r\n"
    for _ in range(3):
        clock.advance(121)
    assert end.connection.closed
    assert end.connection.reason == "Stale Connection"


async def test_the_reason_of_the_hub_stays(hub):
    end = await hub().join()
    end.send(b"-ERR 'Duplicate Remote LeafNode Connection'\r\n")
    end.connection.connection_lost(None)
    assert end.connection.reason == "Duplicate Remote LeafNode Connection"
    assert end.connection.was_open


async def test_garbage_ends_the_connection(hub):
    end = await hub().join()
    end.send(b"SUB a 1\r\n")
    assert b"-ERR 'Unknown Protocol Operation'" in await end.take()
    assert end.connection.closed


async def test_interest_ends_with_the_connection(hub):
    end = await hub().join()
    end.send(b"".join(b"LS+ s.%d\r\n" % number for number in range(250)))
    await end.take()
    assert end.account.has_interest(b"s.7")
    end.connection.connection_lost(None)
    assert end.account.publish(b"s.249", b"", b"", b"") == 0
    for _ in range(5):
        await end.take()
    assert end.account.interest_count == 0
    assert end.announcements._followers == {}


async def test_the_socket_of_a_hub_that_takes_nothing_is_cut_off_at_a_stop(hub, monkeypatch):
    monkeypatch.setattr(peer_connection, "_STOP_S", 0.0)
    end = await hub().join()
    end.connection.end(reason="Stale Connection")
    assert end.sockets == {end.connection}
    await peer_connection.hang_up_all(end.sockets)
    assert end.transport.aborted
    end.connection.connection_lost(None)
    assert not end.sockets


async def test_a_stop_cuts_off_hubs_that_take_nothing(hub, make_server, monkeypatch):
    monkeypatch.setattr(peer_connection, "_STOP_S", 0.0)
    server = make_server()
    nodes = LeafNodes(server._services, LeafOptions(), "", Random(1), server._connection_table)
    end = await hub(server=server).join()
    nodes.sockets.add(end.connection)
    await nodes.stop()
    assert end.transport.aborted


async def test_a_hub_that_sends_no_more_and_takes_nothing_is_cut_off_in_time(hub, make_server, monkeypatch):
    end = await hub(server=make_server(write_deadline_s=7.0)).join()
    due = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *given: due.append(given))
    end.transport.buffered = 5
    end.connection.eof_received()
    assert end.connection.closed
    assert [delay_s for delay_s, abort in due if abort == end.transport.abort] == [7.0]


async def test_later_infos_are_passed_on(hub):
    end = await hub().join()
    end.send_info(leafnode_urls=["a:1", "b:2"])
    assert [info.leafnode_urls for info in end.infos] == [("h:1",), ("a:1", "b:2")]


async def test_a_hub_that_does_not_read_is_cut_off_and_nothing_is_kept(hub, make_server):
    server = make_server(max_pending=4096, max_payload=1024)
    end = await hub(server=server).join()
    end.send(b"LS+ a\r\n")
    end.connection.pause_writing()
    assert end.link.congested
    end.transport.buffered = 5 * 1024 * 1024
    for _ in range(3000):
        end.account.publish(b"a", b"", b"", b"x" * 1024)
    assert end.connection.closed
    assert end.transport.aborted
    assert end.connection.writer.pending_bytes() <= end.transport.buffered


WORDS = st.sampled_from(
    [
        b"LS+ a.*",
        b"LS+ a q 2",
        b"LS+ a q 0",
        b"LS- a q",
        b"LS- a.*",
        b"LS+ $JS.API.>",
        b"LS+ \xff.>",
        b"LMSG a 2\r\nhi",
        b"LMSG a.b $JS.ACK.S.c.1.1.1.1.0@x.y 2\r\nhi",
        b"LMSG a $JS.ACK.@ 0\r\n",
        b"LMSG a $JS.ACK.S.c.1.1.1.1.0@ 0\r\n",
        b"LMSG a..b + r q p 0\r\n",
        b"LMSG $JS.API.STREAM.NAMES r 0\r\n",
        b"LMSG $JS.edge.API.STREAM.NAMES r 0\r\n",
        b"LMSG $JS.ACK.S.c.1.1.1.1.0 4\r\n+ACK",
        b"HMSG a 3 3\r\nxxx",
        b"HMSG a r 12 14\r\nNATS/1.0\r\n\r\nhi",
        b"PING",
        b"PONG",
        b"+OK",
        b"-ERR 'no'",
        b'INFO {"client_id":1,"leafnode_urls":["x:y"],"max_payload":1}',
        b"INFO {",
        b"CONNECT {}",
    ]
)


@given(st.lists(WORDS | st.binary(max_size=8), max_size=12), st.integers(1, 40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_whatever_a_hub_sends_is_no_defect(hub, make_server, lines, size):
    server = make_server()
    client = await Client(server).hello()
    client.send(b"SUB > 1\r\nSUB a q 2\r\n")
    end = await hub(server=server).join()
    data = b"".join(line + b"\r\n" for line in lines)
    for position in range(0, len(data), size):
        end.send(data[position : position + size])
    await end.take()
    client.send(b"PUB a r 1\r\nx\r\n")
    await end.take()
    end.connection.connection_lost(None)
    await end.take()
    assert server.defects == 0, server.log.lines[-3:]
