"""Runs of publishes: each gets the answer, and leaves the stream, that its messages get and leave one by one."""

from collections import defaultdict
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.protocol.frames import PubRun
from jetlake.protocol.parser import ServerParser
from jetlake.protocol.publish_runs import PublishRuns

STREAMS = {
    "plain": {},
    "many subjects": {"subjects": ["s.>", "t.>"]},
    "short window": {"duplicate_window": 2_000_000_000},
    "discard new": {"discard": "new", "max_msgs": 150},
    "discard old": {"max_msgs": 40},
    "small": {"max_msg_size": 150},
    "last of each subject": {"max_msgs_per_subject": 1},
    "full of bytes": {"max_bytes": 9000, "discard": "new"},
    "no acks": {"no_ack": True},
    "nobody's interest": {"retention": "interest"},
    "transformed": {"subject_transform": {"src": "s.*", "dest": "s.x.{{wildcard(1)}}"}},
    "republished": {"republish": {"src": "s.>", "dest": "r.>"}},
    "fast batches": {"allow_batched": True},
    "ages": {"max_age": 3_000_000_000, "duplicate_window": 2_000_000_000},
}

BLOCKS = [
    b"Nats-Msg-Id: odd\r\nA: b",
    b"Nats-Msg-Id: odd\r\nNats-Msg-Id: even",
    b"nats-msg-id: odd",
    b"NATS-MSG-ID: odd",
    b"Nats-Msg-Id:odd",
    b"Nats-Msg-Id:   odd",
    b"Nats-Msg-Id: ",
    b"Nats-Msg-Id: o d d ",
    b"Nats-Msg-Id: \xff\x00\xfe",
    b"Nats-Msg-Id: " + b"long" * 300,
    b"Nats-Expected-Last-Sequence: 3",
    b"Nats-Expected-Last-Msg-Id: 7\r\nNats-Msg-Id: 8",
    b"Nats-Rollup: sub",
    b"A: b",
]


def frame(subject, reply, header, payload):
    words = [word for word in (subject, reply) if word]
    if header:
        header = b"NATS/1.0\r\n%b\r\n\r\n" % header
        words.append(b"%d" % len(header))
    words.append(b"%d" % (len(header) + len(payload)))
    return b"%b %b\r\n%b%b\r\n" % (b"HPUB" if header else b"PUB", b" ".join(words), header, payload)


def stretch(random):
    """Publishes of one kind, with odd ones between."""
    has_ids, reply = random.random() < 0.7, random.choice([b"", b"_INBOX.shared", b"_INBOX.%d", b"_INBOX.%d"])
    oddity = random.choice([0, 0, 0.05])
    frames = []
    for number in range(random.choice([1, 30, 60, 90])):
        subject, payload = b"s.%d" % random.randrange(9), b"x" * random.choice([30, 60, 61])
        header = b"Nats-Msg-Id: %d" % random.randrange(3000) if has_ids else b""
        if random.random() < oddity:
            subject = random.choice([subject, b"t.1"])
            payload = random.choice([b"", b"x" * 200, b"a\r\nPUB s.1 1\r\nb\r\n"])
            header = random.choice([b"", header, *BLOCKS])
        frames.append(frame(subject, reply % number if b"%" in reply else reply, header, payload))
    if random.random() < 0.3:
        frames.append(frames[0])  # the id of the first once more
    return frames


def receive(harness, frames):
    """Route frames as a connection does; how many were parts of runs."""
    in_runs = 0
    for each in frames:
        if isinstance(each, PubRun) and harness.account.publish_run(each):
            in_runs += len(each.subjects)
            continue
        for message in each.messages() if isinstance(each, PubRun) else [each]:
            harness.publish(message.subject, message.payload, message.header, reply=message.reply)
    return in_runs


def answers(harness):
    """The payloads that each reply subject got from each stream, in order."""
    found = defaultdict(list)
    for message in harness.client.take():
        found[message.subject, b'"stream":"T"' in message.payload].append((message.header, message.payload))
    return dict(found)


def contents(stream):
    store = stream.store
    kept = [store.get(sequence) for sequence in range(store.first_sequence, store.last_sequence + 1)]
    messages = [(each.sequence, each.subject, each.header, each.payload) for each in kept if each is not None]
    ids = sorted((sequence, message_id) for message_id, sequence, _ in stream.ids.window.entries())
    return store.last_sequence, store.bytes, messages, ids, stream.ids.last


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("config", STREAMS.values(), ids=STREAMS)
def test_runs_leave_what_single_messages_leave(make_harness, config, seed):
    random = Random(seed)
    ways = [make_harness(), make_harness()]
    streams = [way.create(**config) for way in ways]
    if "subjects" not in config:
        for way in ways:
            way.create("T", subjects=["t.*"])
    single, in_runs = ServerParser(), 0
    for _ in range(40):
        parser = ServerParser(publish_runs=PublishRuns())
        frames = stretch(random)
        if random.random() < 0.4:  # with ids and without them in one turn
            frames += stretch(random)
        data = b"".join(frames)
        cut = random.choice([0, random.randrange(len(data))])
        for part in (data[:cut], data[cut:]):
            in_runs += receive(ways[0], parser.feed(part))
            ways[0].turn()
        for each in frames:
            receive(ways[1], single.feed(each))
            ways[1].turn()
        assert answers(ways[0]) == answers(ways[1])
        assert contents(streams[0]) == contents(streams[1])
        for way in ways:
            way.advance(len(frames) % 4 * 0.5)
    assert in_runs > 100


def frames_with_ids(count):
    return b"".join(frame(b"s.1", b"_INBOX.1", b"Nats-Msg-Id: %d" % each, b"x" * 60) for each in range(count))


@pytest.mark.parametrize(
    "error", [StoreError("append", "no room"), RuntimeError("a defect")], ids=["refusal", "defect"]
)
def test_the_ids_of_a_run_that_could_not_be_stored_are_free(harness, monkeypatch, error):
    stream = harness.create(subjects=["s.>", "t.>"])
    parser = ServerParser(publish_runs=PublishRuns())
    data = frames_with_ids(50)

    def refuse(*_):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(stream.store, "append_run", refuse)
        assert receive(harness, parser.feed(data)) == 50
        try:
            harness.turn()
        except RuntimeError as raised:
            assert raised is error
    assert len(stream.ids.window) == 0
    harness.client.take()
    assert receive(harness, parser.feed(data)) == 50
    harness.turn()
    assert stream.store.last_sequence == 50
    assert not any(b"duplicate" in payload for payloads in answers(harness).values() for _, payload in payloads)
    assert len(stream.ids.window) == 50


def test_a_run_with_the_replies_of_a_fast_batch_is_one(make_harness):
    results = []
    for is_run in (True, False):
        harness = make_harness()
        stream = harness.create(allow_batched=True)
        replies = [b"_INBOX.f.b.10.fail.%d.%d.$FI" % (number, number > 1) for number in range(1, 40)]
        (run,) = ServerParser(publish_runs=PublishRuns()).feed(
            b"".join(frame(b"s.1", r, b"", b"x" * 60) for r in replies)
        )
        assert receive(harness, [run] if is_run else run.messages()) == len(replies) * is_run
        harness.turn()
        results.append((answers(harness), contents(stream)))
    assert results[0] == results[1]
    assert results[0][0]


def test_a_run_that_others_want_too_or_that_several_streams_take_is_routed_one_by_one(harness):
    harness.create(subjects=["s.>"])
    harness.create("T", subjects=["t.>"])
    parser = ServerParser(publish_runs=PublishRuns())
    (mixed,) = parser.feed(b"".join(b"PUB %b.1 60\r\n%b\r\n" % (name, b"x" * 60) for name in (b"s", b"t") * 20))
    assert isinstance(mixed, PubRun)
    assert not harness.account.publish_run(mixed)
    run = PubRun([b"s.1", b"s.2"], [b"", b""], [b"", b""], [b"a", b"b"], [], b"s.1s.2", 2, 1)
    assert harness.account.publish_run(run)
    assert {b"s.1", b"s.2"} <= harness.account.literals.keys()
    harness.account.subscribe(b"s.2", b"9", harness.client)
    assert not harness.account.publish_run(run)
    nowhere = PubRun([b"u.1"], [b""], [b""], [b"a"], [], b"u.1", 1, 1)
    assert not harness.account.publish_run(nowhere)
    harness.turn()
    assert harness.state()["messages"] == 2
