"""kill -9 of real processes under load, a few rounds of what `benchmarks/durability.py` does hundreds of times."""

import json
import os
from random import Random

import pytest

from jetlake.client.connection.socket_connection import connect_socket
from jetlake.client.tables.stream_api import StreamApi
from jetlake.model.stream import StreamConfig
from tests.faults.damage import Damage, cut_the_tail, flip_one_byte
from tests.faults.kill_rounds import Ledger, client_kill_rounds, kill_rounds
from tests.faults.killable import KillableServer

# A machine that has the time can run more of them.
ROUNDS = int(os.environ.get("JETLAKE_KILL_ROUNDS", "2"))


@pytest.mark.parametrize("client", ["jetlake", "nats-py"])
async def test_a_killed_server_keeps_what_it_has_promised(client):
    findings = await kill_rounds("jetlake", ROUNDS, Random(), clients=(client,))
    assert findings.acknowledged and findings.confirmed
    assert findings.losses == 0, findings


def test_ids_that_were_acknowledged_are_known_after_a_kill():
    """Of a burst that is read in runs."""
    frames = []
    for number in range(3000):
        header = b"NATS/1.0\r\nNats-Msg-Id: id-%d\r\n\r\n" % number
        sizes = (len(header), len(header) + 64)
        frames.append(b"HPUB ids.%d _INBOX.a.%d %d %d\r\n%b%064d\r\n" % (number % 9, number, *sizes, header, number))
    with KillableServer("jetlake") as server:
        with connect_socket(server.url) as connection:
            StreamApi(connection).create_stream(StreamConfig.of("I", subjects=["ids.*"]))
            connection.subscribe(b"_INBOX.a.*")
            before = {}
            for start in range(0, len(frames), 500):
                connection.send(b"".join(frames[start : start + 500]))
                if start:
                    before |= read_acks(connection)
        server.kill()
        assert before
        server.start()
        with connect_socket(server.url) as connection:
            connection.subscribe(b"_INBOX.a.*")
            connection.send(b"".join(frames))
            after = {}
            while len(after) < len(frames):
                after |= read_acks(connection)
            state = StreamApi(connection).stream_info("I").state
        assert {number: after[number] for number in before} == {
            number: {**ack, "duplicate": True} for number, ack in before.items()
        }
        assert state.messages == len(frames)


def read_acks(connection):
    """The acknowledgements that come next, by the last token of their reply subjects."""
    return {int(each.subject.rpartition(b".")[2]): json.loads(each.payload) for each in connection.receive(60.0)}


async def test_a_killed_client_leaves_whole_messages_and_redeliveries():
    findings = await client_kill_rounds("jetlake", ROUNDS, Random())
    assert findings.acknowledged and findings.confirmed
    assert findings.losses == 0, findings


async def test_one_flipped_byte_costs_one_record_at_most():
    result = Damage()
    for _ in range(max(ROUNDS // 2, 1)):
        await flip_one_byte("jetlake", Random(), result)
    assert result.losses == 0, result


async def test_a_cut_tail_brings_no_sequence_back():
    result = Damage()
    for _ in range(max(ROUNDS // 2, 1)):
        await cut_the_tail("jetlake", Random(), result)
    assert result.losses == 0, result


def test_the_book_keeper_sees_every_kind_of_loss():
    ledger = Ledger()
    for sequence in range(1, 6):
        ledger.published(sequence, b"%d" % sequence)
    ledger.delivered(4, b"4")
    ledger.confirm(4)
    ledger.compare({2: b"other", 3: b"3", 4: b"4", 5: b"5", 6: b"5"})
    ledger.delivered(4, b"4")
    findings = ledger.findings
    assert (findings.lost, findings.reused, findings.stored_twice, findings.pending_again) == (2, 1, 1, 1)


@pytest.mark.flaky(reruns=1)
async def test_the_harness_sees_losses_of_a_server_that_has_some():
    """nats-server gives the sequence of a record with a cut tail to the next message."""
    result = Damage()
    await cut_the_tail("nats-server", Random(), result)
    assert result.reused == 1
