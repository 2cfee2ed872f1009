"""Runs of small messages: which reads are one, and that the others are read the same way without."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.protocol.frames import Err, MessageRun, Msg, Ping
from jetlake.protocol.message_runs import RUN_BYTES_MIN
from jetlake.protocol.parser import ClientParser
from tests.support.cut_reads import pieces


def frame(message: Msg) -> bytes:
    words = [b"HMSG" if message.header else b"MSG", message.subject, message.sid]
    words += [message.reply] if message.reply else []
    words += [b"%d" % len(message.header)] if message.header else []
    words += [b"%d" % len(message.header + message.payload)]
    return b" ".join(words) + b"\r\n" + message.header + message.payload + b"\r\n"


def messages(count=200, sid=b"7", reply=b"", payload=b"some content", subject=b"s.%d"):
    return [Msg(subject % number, sid, reply, b"", payload) for number in range(count)]


def parser(shown=()):
    """Return a parser of a connection that has shown messages of these sizes before, with subjects of two lengths."""
    reader = ClientParser(message_runs=True)
    for one in shown:
        pair = frame(one) + frame(Msg(one.subject + b".x", one.sid, one.reply, b"", one.payload))
        for _ in range(2):
            reader.feed(pair * (RUN_BYTES_MIN // len(pair) + 1))
    return reader


SUBJECTS = [b"s.%d", b"s.%03d"]
"""Subjects of several lengths and of one, which makes frames of one shape."""


def single(frames):
    """The frames one by one, in runs or not."""
    for one in frames:
        if isinstance(one, MessageRun):
            replies = one.replies or itertools.repeat(b"")
            for subject, reply, payload in zip(one.subjects, replies, one.payloads, strict=False):
                yield Msg(subject, one.sid, reply, b"", payload)
        else:
            yield one


@pytest.mark.parametrize("reply", [b"", b"$JS.ACK.S.c.1.2.3.4.5"])
@pytest.mark.parametrize("payload", [b"", b"x", b"with\nline ends \r of all kinds but one\n"])
@pytest.mark.parametrize("is_shown", [False, True])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_small_messages_of_one_subscription_are_a_run(reply, payload, is_shown, subject):
    sent = messages(reply=reply, payload=payload, subject=subject)
    frames = parser(sent[:is_shown]).feed(b"".join(map(frame, sent)))
    assert [type(one) for one in frames] == [MessageRun]
    assert frames[0].sid == b"7"
    assert list(single(frames)) == sent


@pytest.mark.parametrize("payload", [b"MSG s.1 7 2\r\nhi\r\n" * 9, b"x" * 5000, b" 7 12\r\n", b"\r\nMSG"])
def test_messages_of_a_size_that_was_shown_are_a_run_whatever_they_hold(payload):
    sent = messages(30 + 3000 // (len(payload) + 1), payload=payload)
    frames = parser(sent[:1]).feed(b"".join(map(frame, sent)) + b"PING\r\n")
    assert [type(one) for one in frames] == [MessageRun, Ping]
    assert list(single(frames[:1])) == sent


@pytest.mark.parametrize("payload", [b"MSG s.001 7 2\r\nhi\r\n" * 9, b"x" * 5000, b" 7 12\r\n", b"\r\nMSG"])
def test_messages_of_one_shape_are_a_run_whatever_they_hold(payload):
    sent = messages(40 + 3000 // (len(payload) + 1), payload=payload, subject=b"s.%04d")
    frames = parser().feed(b"".join(map(frame, sent)) + b"PING\r\n")
    assert [type(one) for one in frames] == [MessageRun, Ping]
    assert list(single(frames[:1])) == sent


@pytest.mark.parametrize(
    "counts", [(400, 400, 400), (400, 9, 400), (400, 400, 3), (5, 400, 200), (7, 31, 300), (33, 32, 31)]
)
def test_messages_of_one_shape_after_another_are_one_run(counts):
    forms = zip((b"s.%03d", b"s.%04d", b"s.%05d"), counts, strict=True)
    sent = [one for subject, count in forms for one in messages(count, subject=subject)]
    frames = parser(sent[:1]).feed(b"".join(map(frame, sent)))
    assert list(single(frames)) == sent
    assert type(frames[0]) is MessageRun and MessageRun not in map(type, frames[1:])


def test_sizes_one_after_another_are_one_run():
    sent = [one for payload in (b"9", b"10") for one in messages(300, payload=payload)]
    frames = parser([sent[0], sent[-1]]).feed(b"".join(map(frame, sent)))
    assert [len(one.payloads) for one in frames] == [600]
    assert list(single(frames)) == sent


def test_each_subscription_in_turn_has_its_run():
    sent = messages(50, b"7") + messages(40, b"8") + messages(60, b"7")
    frames = parser().feed(b"".join(map(frame, sent)))
    assert [(type(one), one.sid, len(one.payloads)) for one in frames] == [
        (MessageRun, b"7", 50),
        (MessageRun, b"8", 40),
        (MessageRun, b"7", 60),
    ]
    assert list(single(frames)) == sent
    mixed = [one for pair in zip(messages(100, b"7"), messages(100, b"8"), strict=True) for one in pair]
    assert parser().feed(b"".join(map(frame, mixed))) == mixed


@pytest.mark.parametrize("is_shown", [False, True])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_message_that_is_cut_belongs_to_the_next_read(is_shown, subject):
    sent = messages(200, subject=subject)
    data = b"".join(map(frame, sent))
    for cut in range(len(data) // 2, len(data) // 2 + len(frame(sent[0]))):
        reader = parser(sent[:is_shown])
        first, second = reader.feed(data[:cut]), reader.feed(data[cut:])
        assert type(first[0]) is type(second[-1]) is MessageRun
        assert list(single(first + second)) == sent


@pytest.mark.parametrize(
    "odd",
    [
        b"PING\r\n",
        b"-ERR 'Permissions Violation'\r\n",
        frame(Msg(b"s.x", b"8", b"", b"", b"of another subscription")),
        frame(Msg(b"s.x", b"7", b"reply", b"", b"only one has a reply")),
        frame(Msg(b"s.x", b"7", b"", b"NATS/1.0\r\n\r\n", b"headers")),
        frame(Msg(b"s.x", b"7", b"", b"", b"MSG s.x 7 2\r\nhi\r\n")),
        b"MSG  s.x 7 2\r\nhi\r\n",
        b"MSG s.x\t7 2\r\nhi\r\n",
        b"msg s.x 7 2\r\nhi\r\n",
        b"MSG s.x 7 2\nhi\r\n",
        b"MSG s.x 7 02\r\nhi\r\n",
        b"MSG s.x 7 $JS.ACK.1 02\r\nhi\r\n",
        b"MSG  7 7 2\r\nhi\r\n",
        b"MSG s.x  7 2\r\nhi\r\n",
        b"MSG s.x 7  2\r\nhi\r\n",
        b"MSG s\rx 7 2\r\nhi\r\n",
        b"MSG s.x 7 a\tb 2\r\nhi\r\n",
        b"MSG s\fx 7 2\r\nhi\r\n",
        b"MSG s.x\v7 r 2\r\nhi\r\n",
        frame(Msg(b"", b"7", b"$JS.ACK.1", b"NATS/1.0 408 Request Timeout\r\n\r\n", b"")),
        frame(Msg(b"s.x", b"7", b"$JS.ACK.1", b"", b"a line\nand another\n")),
        frame(Msg(b"s.x", b"7", b"$JS.ACK.1", b"", b"x" * 3000)),
    ],
)
@pytest.mark.parametrize("place", [0, 100, 200])
@pytest.mark.parametrize("reply", [b"", b"$JS.ACK.1"])
@pytest.mark.parametrize("payload", [b"some content", b"{\n  some: text\n}"])
@pytest.mark.parametrize("is_shown", [False, True])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_whatever_stands_between_them_is_read_as_without_runs(odd, place, reply, payload, is_shown, subject):
    sent = messages(reply=reply, payload=payload, subject=subject)
    wires = list(map(frame, sent))
    data = b"".join([*wires[:place], odd, *wires[place:]])
    assert list(single(parser(sent[:is_shown]).feed(data))) == ClientParser().feed(data)


@pytest.mark.parametrize(
    "bad",
    [
        b"MSG s.x 7 3\r\nhi\r\n",
        b"MSG s.x 7\r\n",
        b"WHAT\r\n",
        b"WHAT s.x 7 2\r\nhi\r\n",
        b" MSG s.x 7 2\r\nhi\r\n",
        b"MSG s.x 7\n 2\r\nhi\r\n",
        b"MSG s.x 7 2 more\r\nhi\r\n",
        b"MSG s.x 7 two\r\nhi\r\n",
        b"MSG s.x 7 r e 2\r\nhi\r\n",
        b"MSG s.x 7 2\r\nhi\n",
        b"MSG s.x 7 2\r\nhi\rMSG s.y 7 2\r\nhi\r\n",
    ],
)
@pytest.mark.parametrize("place", [100, 200])
@pytest.mark.parametrize("is_shown", [False, True])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_violation_ends_a_run_too(bad, place, is_shown, subject):
    wires = list(map(frame, messages(subject=subject)))
    reader, plain = parser([messages()[0]][:is_shown]), ClientParser()
    data = b"".join([*wires[:place], bad, *wires[place:]])
    assert list(single(reader.feed(data))) == plain.feed(data)
    assert reader.error is not None and str(reader.error) == str(plain.error)


def assert_read_as_without_runs(data, is_shown):
    reader, plain = parser(messages(1)[:is_shown]), ClientParser()
    assert list(single(reader.feed(data))) == plain.feed(data)
    assert str(reader.error) == str(plain.error)


@pytest.mark.parametrize("reply", [b"", b"$JS.ACK.1"])
@pytest.mark.parametrize("place", [0, 3, 190])
@pytest.mark.parametrize("is_shown", [False, True])
def test_any_other_byte_in_a_frame_of_the_same_length_is_seen(reply, place, is_shown):
    wires = list(map(frame, messages(reply=reply, subject=b"s.%03d")))
    for position in range(len(wires[place])):
        for byte in (b" ", b"\t", b"\r", b"\n", b"\f", b"M", b"7", b"1"):
            odd = wires[place][:position] + byte + wires[place][position + 1 :]
            assert_read_as_without_runs(b"".join([*wires[:place], odd, *wires[place + 1 :]]), is_shown)


@pytest.mark.parametrize(
    "line",
    [
        b"MSG  7 12",
        b"MSG s  12",
        b"MSG s 7  12",
        b"MSG s  7 12",
        b"MSG s\t7 r 12",
        b"MSG s 7\tr 12",
        b"MSG s 7\f 12",
        b"MSG s 7 r\t 12",
        b"MSG s\r 7 12",
        b"MSG s 7 r q 12",
        b"MSG s 12",
        b"MSG s 7 012",
        b"MSG s 7 -12",
        b"MSG s 7 13",
        b"msg s 7 12",
    ],
)
@pytest.mark.parametrize("is_shown", [False, True])
def test_many_odd_frames_are_read_as_without_runs(line, is_shown):
    assert_read_as_without_runs((line + b"\r\nsome content\r\n") * 200, is_shown)


@pytest.mark.parametrize("line", [b"MSG s.%d 7\tr 5", b"MSG s.%d 7\vr 5", b"MSG s.%d 7\r 5"])
def test_reads_of_odd_frames_that_show_the_same_subscription_are_read_as_without_runs(line):
    data = b"".join(line % number + b"\r\nhello\r\n" for number in range(200))
    with_runs, without = ClientParser(message_runs=True), ClientParser()
    for _ in range(4):
        assert list(single(with_runs.feed(data))) == without.feed(data)


def test_limits_hold():
    reader = ClientParser(message_runs=True, max_payload=100)
    sent = messages(30, payload=b"x" * 101)
    assert reader.feed(b"".join(map(frame, sent))) == []
    assert reader.error is not None
    frames = parser().feed(b"".join(map(frame, messages())), lines=10)
    assert len(frames) <= 10 and MessageRun not in map(type, frames)


def test_reads_that_are_no_runs_are_tried_less_and_less():
    reader = parser()
    run = b"".join(frame(one) for pair in zip(messages(100), messages(100, payload=b"x"), strict=True) for one in pair)
    mixed = run + b"PING\r\n" + run
    assert MessageRun in map(type, reader.feed(run))
    for _ in range(1000):
        assert MessageRun not in map(type, reader.feed(mixed))
    passed = sum(MessageRun not in map(type, reader.feed(run)) for _ in range(200))
    assert 0 < passed < 128
    assert MessageRun in map(type, reader.feed(run))


def in_turns(count, *payloads):
    return [
        one for pair in zip(*(messages(count, payload=payload) for payload in payloads), strict=True) for one in pair
    ]


def test_large_messages_of_several_sizes_and_small_reads_are_no_run():
    for sent in (in_turns(5, b"x" * 1000, b"x" * 999), in_turns(5, b"x\n" * 200, b"x\n" * 199), messages(3)):
        data = b"".join(map(frame, sent))
        assert parser().feed(data) == sent
    assert [type(one) for one in parser().feed(b"".join(map(frame, messages(10, payload=b"x" * 700))))] == [MessageRun]
    assert len(b"".join(map(frame, messages(3)))) < RUN_BYTES_MIN


NAMES = st.sampled_from([b"1", b"2"])
CONTENTS = st.sampled_from([b"", b"x", b"y" * 30, b"\r\n", b"\n", b"\r", b"a\r\nMSG s 1 1", b"z" * 500])
MESSAGES = st.builds(Msg, st.sampled_from([b"s", b"t.u"]), NAMES, st.sampled_from([b"", b"r"]), st.just(b""), CONTENTS)
PARTS = st.lists(
    st.tuples(MESSAGES, st.integers(1, 150)) | st.tuples(st.sampled_from([Ping(), Err("no")]), st.just(1)), max_size=6
)


@given(PARTS, st.lists(st.integers(0, 30_000), max_size=8), st.booleans())
def test_any_cut_gives_the_messages_that_were_sent(parts, cuts, is_shown):
    wire = {Ping: lambda _: b"PING\r\n", Err: lambda _: b"-ERR 'no'\r\n", Msg: frame}
    sent = [one for one, count in parts for _ in range(count)]
    data = b"".join(wire[type(one)](one) for one in sent)
    reader = parser([one for one, _ in parts if type(one) is Msg] if is_shown else ())
    frames = [one for part in pieces(data, cuts) for one in reader.feed(part)]
    assert list(single(frames)) == sent
