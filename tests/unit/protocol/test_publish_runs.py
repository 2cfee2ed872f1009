"""Publishes in a row: what becomes a run, and that a run says what its frames say."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.protocol.frames import Ping, Pub, PubRun
from jetlake.protocol.parser import ServerParser
from jetlake.protocol.publish_runs import LINE_MAX, RUN_MAX, SIZE_MAX, PublishRuns
from tests.support.cut_reads import feed_in_groups, one_by_one, pieces

PAYLOAD = b"x" * 200


def publish(*, subject=b"s.1", reply=b"", message_id=None, header=b"", payload=PAYLOAD):
    """The frame of one publish."""
    if message_id is not None:
        header = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % message_id
    words = [word for word in (subject, reply) if word]
    if header:
        words.append(b"%d" % len(header))
    words.append(b"%d" % (len(header) + len(payload)))
    return b"%b %b\r\n%b%b\r\n" % (b"HPUB" if header else b"PUB", b" ".join(words), header, payload)


def parse(data, **options):
    parser = ServerParser(publish_runs=PublishRuns(), **options)
    frames = parser.feed(data)
    assert parser.error is None
    assert parser.message_count == len(one_by_one(frames))
    return frames


@pytest.mark.parametrize("reply", [b"", b"_INBOX.a.1"])
@pytest.mark.parametrize("has_ids", [False, True])
def test_publishes_of_one_kind_are_a_run(reply, has_ids):
    ids = [b"run/0/%d" % number for number in range(20)] if has_ids else []
    data = b"".join(
        publish(
            subject=b"s.%d" % (number % 3),
            reply=reply,
            message_id=ids[number] if has_ids else None,
            payload=PAYLOAD + b"%d" % number,
        )
        for number in range(20)
    )
    (run,) = parse(data)
    expected = ServerParser().feed(data)
    assert run.messages() == expected
    assert run.ids == ids
    sizes = [len(message.header) + len(message.payload) for message in expected]
    assert (run.size, run.size_max) == (sum(sizes), max(sizes))
    assert all(message.subject in run.words and message.reply in run.words for message in expected)


@pytest.mark.parametrize(
    "frame",
    [
        publish(payload=b"x\n" * 100),
        publish(payload=b"x\r\n" * 100),
        publish(payload=b"x" * 1100),
        publish(payload=b"PUB s.1 200\r\n" * 20),
        publish().replace(b" 200", b"  200"),
        publish().replace(b" 200", b" 0200"),
        publish().replace(b" 200", b" 200 "),
        publish().replace(b"PUB", b"pub"),
        publish().replace(b"s.1", b"s\t1"),
        publish().replace(b"s.1", b"s\v1"),
        publish(subject=b"$JS.API.INFO", reply=b"_INBOX.1"),
        publish(subject=b"s" * 600),
        publish(message_id=b""),
        publish(message_id=b" a"),
        publish(message_id=b"a\rb"),
        publish(message_id=b"a" * 600),
        publish(header=b"NATS/1.0\r\nnats-msg-id: a\r\n\r\n"),
        publish(header=b"NATS/1.0\r\nNats-Msg-Id:a\r\n\r\n"),
        publish(header=b"NATS/1.0 503\r\nNats-Msg-Id: a\r\n\r\n"),
        publish(header=b"NATS/1.0\r\nNats-Msg-Id: a\r\nNats-Msg-Id: b\r\n\r\n"),
        publish(header=b"NATS/1.0\r\nNats-Msg-Id: a\r\nNats-Rollup: all\r\n\r\n"),
        publish(header=b"NATS/1.0\r\nNats-Trace-Dest: a\r\n\r\n"),
        publish(header=b"NATS/1.0\r\n\r\n"),
    ],
)
def test_whatever_is_no_plain_publish_is_a_message_by_itself(frame):
    data = frame * 20
    frames = parse(data)
    assert PubRun not in map(type, frames)
    assert frames == ServerParser().feed(data)
    for plain in (publish(), publish(message_id=b"b")):
        data = plain * 20 + frame + plain * 20
        assert one_by_one(parse(data)) == ServerParser().feed(data)


def test_a_run_ends_where_another_kind_begins():
    data = publish() * 20 + publish(reply=b"r") * 20 + b"PING\r\n" + publish(message_id=b"a") * 20
    frames = parse(data)
    assert type(frames[0]) is PubRun
    assert len(frames[0].subjects) == 20
    assert sum(isinstance(frame, Ping) for frame in frames) == 1
    assert one_by_one(frames) == ServerParser().feed(data)


def test_an_id_may_hold_what_is_no_line_end():
    for message_id in (b"a b ", b"\xff\xfe", "ä€".encode(), b"a:b", b"a\nb", b"a" * 512):
        (run,) = parse(publish(message_id=message_id) * 20)
        assert run.ids == [message_id] * 20


def test_limits_hold_for_every_publish():
    data = publish() * 20
    for limits in ({"max_payload": 100}, {"max_control_line": 5}):
        parser = ServerParser(publish_runs=PublishRuns(), **limits)
        assert parser.feed(data) == []
        assert parser.error is not None
    longest = publish(subject=b"s" * 512, reply=b"r" * 512, message_id=b"i" * 512, payload=b"x" * 1024)
    (run,) = parse(longest * 20, max_control_line=LINE_MAX, max_payload=SIZE_MAX)
    assert run.size_max == SIZE_MAX
    assert longest.index(b"\r\n") <= LINE_MAX
    assert type(parse(data, max_payload=SIZE_MAX - 1)[0]) is type(parse(data, max_control_line=LINE_MAX - 1)[0]) is Pub


def test_a_long_run_is_bounded_and_ends_the_group_of_lines():
    data = publish() * (RUN_MAX + 100)
    parser = ServerParser(publish_runs=PublishRuns())
    (run,) = parser.feed(data, 0, 64)
    assert len(run.subjects) == RUN_MAX
    assert parser.position == RUN_MAX * len(publish())
    (run,) = parser.feed(data, parser.position, 64)
    assert len(run.subjects) == 100


def test_tries_in_vain_become_rare_and_come_back():
    runs = PublishRuns()
    mixed = (publish() + publish(message_id=b"a")) * 20
    plain = publish() * 20
    for _ in range(30):
        assert runs.read(mixed, 0) is None
    waited = list(itertools.takewhile(lambda found: found is None, (runs.read(plain, 0) for _ in range(100))))
    assert 3 < len(waited) <= 64
    assert any(runs.read(plain, 0) is not None for _ in range(100))
    for _ in range(300):
        runs.read(plain, 0)
    assert all(runs.read(plain, 0) is not None for _ in range(20))
    runs.discourage()
    assert runs.read(plain, 0) is None


FRAMES = st.lists(
    st.builds(
        lambda frame, count: frame * count,
        st.builds(
            publish,
            subject=st.sampled_from([b"s.1", b"s.2", b"$JS.ACK.a", b"s\t1"]),
            reply=st.sampled_from([b"", b"_INBOX.a.1"]),
            message_id=st.none() | st.sampled_from([b"a", b"b c", b"", b" d", b"e\xff"]),
            payload=st.binary(max_size=40) | st.just(b"PUB a 3\r\nabc\r\n") | st.just(PAYLOAD),
        )
        | st.sampled_from([b"PING\r\n", b"HPUB a 12 12\r\nNATS/1.0\r\n\r\n\r\n"]),
        st.integers(1, 80),
    ),
    max_size=5,
).map(b"".join)


@given(FRAMES, st.lists(st.integers(0, 20_000), max_size=4), st.sampled_from([1, 5, 64]))
def test_any_cut_gives_the_messages_that_were_sent(data, cuts, lines):
    reference = ServerParser()
    expected = reference.feed(data)
    parser = ServerParser(publish_runs=PublishRuns())
    frames = feed_in_groups(parser, pieces(data, cuts), lines)
    assert one_by_one(frames) == expected
    assert str(parser.error) == str(reference.error)
