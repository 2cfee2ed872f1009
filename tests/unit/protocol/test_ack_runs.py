"""Acknowledgements of one consumer in a row: what becomes a run, and that a run says what its lines say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.protocol.ack_runs import ACK_RUN_MAX
from jetlake.protocol.frames import AckRun, Ping, Pub
from jetlake.protocol.parser import ServerParser
from tests.support.cut_reads import feed_in_groups, one_by_one, pieces


def ack(sequence, *, names=b"S.C", body=b"", numbers=b"1.%d.%d.1700000000000000000.9"):
    return b"PUB $JS.ACK.%b.%b %d\r\n%b\r\n" % (names, numbers % (sequence, sequence + 7), len(body), body)


def parse(data, **options):
    parser = ServerParser(ack_runs=True, **options)
    frames = parser.feed(data)
    assert parser.error is None
    assert parser.message_count == len(one_by_one(frames))
    return frames


@pytest.mark.parametrize("names", [b"S.C", b"1.2", b"hub.HASHHASH.S.C"])
@pytest.mark.parametrize("body", [b"", b"+ACK"])
def test_acks_of_one_consumer_are_a_run(names, body):
    data = b"".join(ack(sequence, names=names, body=body) for sequence in (3, 1, 200))
    (run,) = parse(data)
    assert run == AckRun(b"$JS.ACK." + names + b".", [3, 1, 200], [10, 8, 207], data)
    assert run.payload_size == 3 * len(body)
    assert run.messages() == ServerParser().feed(data)


def test_a_run_ends_where_another_consumer_or_body_begins():
    data = ack(1) + ack(2) + ack(1, names=b"S.D") + ack(3) + ack(4, body=b"+ACK") + ack(5, body=b"+ACK") + b"PING\r\n"
    frames = parse(data)
    assert [type(frame) for frame in frames] == [AckRun, Pub, Pub, AckRun, Ping]
    assert one_by_one(frames) == ServerParser().feed(data)


@pytest.mark.parametrize(
    "line",
    [
        ack(1, body=b"-NAK"),
        ack(1, body=b"+NXT"),
        ack(1, numbers=b"01.%d.%d.1.1"),
        ack(1, numbers=b"1.%d.%d.1"),
        ack(1, numbers=b"1.%d.%d.1.1.1"),
        ack(1, numbers=b"1.%d.%d.1.x"),
        ack(1, numbers=b"1.%d.%d.1.1],[1.2.3.4.5"),
        ack(1, numbers=b"1.%d.%d.1.-1"),
        ack(1, numbers=b"1.%d.%d.1.1e5"),
        ack(1, names=b"S"),
        ack(1).replace(b" 0", b" _INBOX.1 0"),
        ack(1).replace(b" 0", b"  0"),
        ack(1).replace(b" 0", b" 00"),
        b"H" + ack(1, body=b"NATS/1.0\r\n\r\n").replace(b" 12", b" 12 12"),
    ],
)
def test_whatever_is_no_plain_ack_is_a_message_by_itself(line):
    assert [type(frame) for frame in parse(line * 3)] == [Pub] * 3
    data = ack(1) + ack(2) + line + ack(3) + ack(4)
    assert one_by_one(parse(data)) == ServerParser().feed(data)


def test_limits_hold_for_every_line_of_a_run():
    data = ack(1, body=b"+ACK") + ack(2, body=b"+ACK")
    for limits in ({"max_payload": 3}, {"max_control_line": 20}):
        parser = ServerParser(ack_runs=True, **limits)
        assert parser.feed(data) == []
        assert parser.error is not None
    assert [type(frame) for frame in parse(data, max_control_line=100)] == [Pub, Pub]


def test_a_long_run_is_bounded_and_ends_the_group_of_lines():
    data = b"".join(map(ack, range(1, 2 * ACK_RUN_MAX + 2)))
    assert [len(frame.sequences) for frame in parse(data)[:2]] == [ACK_RUN_MAX] * 2
    parser = ServerParser(ack_runs=True)
    (run,) = parser.feed(data, 0, 64)
    assert len(run.sequences) == ACK_RUN_MAX
    assert parser.position == len(run.data)


LINES = st.builds(
    ack,
    st.integers(0, 10**20),
    names=st.sampled_from([b"S.C", b"S.C", b"S.C", b"S.D", b"h.a.S.C", b"S"]),
    body=st.sampled_from([b"", b"", b"+ACK", b"-NAK", b"+AC"]),
    numbers=st.sampled_from([b"1.%d.%d.5.0", b"1.%d.%d.5.0", b"01.%d.%d.5.0", b"1.%d.%d.5", b"1.%d.%d.5.0.x"]),
) | st.sampled_from([b"PING\r\n", b"PUB a 1\r\nx\r\n"])


@given(st.lists(LINES, max_size=12).map(b"".join), st.lists(st.integers(0, 600), max_size=6), st.integers(1, 5))
def test_any_cut_gives_the_messages_that_were_sent(data, cuts, lines):
    expected = ServerParser().feed(data)
    parser = ServerParser(ack_runs=True)
    frames = feed_in_groups(parser, pieces(data, cuts), lines)
    assert one_by_one(frames) == expected
    for run in frames:
        if isinstance(run, AckRun):
            tokens = [message.subject.split(b".") for message in run.messages()]
            assert run.sequences == [int(token[-4]) for token in tokens]
            assert run.consumer_sequences == [int(token[-3]) for token in tokens]
