"""Fast batches: flow control, gaps, errors, duplicates and limits, on both servers with the same answers."""

import asyncio
import json

import pytest

from tests.support.pair import Pair
from tests.support.wire import publish_frame

START, APPEND, COMMIT, END, PING = range(5)


@pytest.fixture
async def pair():
    async with Pair() as pair:
        yield pair


async def create(pair, **config):
    await pair.api("STREAM.CREATE.F", {"name": "F", "subjects": ["f.>"], "allow_batched": True, **config})


def at(sequence, operation, header=b"", *, batch="u", flow=3, gap="fail", subject="f.a", payload=b"x", reply=None):
    """One message of a batch: what a publisher sends."""
    reply = reply or f"_INBOX.fi.{batch}.{flow}.{gap}.{sequence}.{operation}.$FI"
    return subject, payload, reply, header


async def talk(pair, *messages, together=True):
    """All answers to messages, sent at once or one after the other; the same from both servers, in the same order."""
    frames = [publish_frame(*message) for message in (*messages, ("f.end", b"", "_INBOX.end", b""))]
    found = []
    for wire in pair._wires:
        await wire.send("SUB _INBOX.> 600\r\n")
        for data in [b"".join(frames)] if together else frames:
            await wire.send(data)
            await asyncio.sleep(0)
        answers = []
        while (message := await wire.message()).subject != "_INBOX.end":
            answers.append((message.subject, json.loads(message.payload)))
        answers.append(("end", json.loads(message.payload)))
        await wire.send("UNSUB 600\r\n")
        await wire.ping()
        found.append(answers)
    ours, theirs = found
    assert ours == theirs, "\n".join(["ours:", *map(str, ours), "theirs:", *map(str, theirs)])
    return ours


def block(**headers):
    lines = [f"Nats-{key.replace('_', '-')}: {value}\r\n" for key, value in headers.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


async def test_a_batch_is_acknowledged_as_it_is_stored(pair):
    await create(pair)
    answers = await talk(pair, at(1, START), *[at(number, APPEND) for number in range(2, 8)], at(8, COMMIT))
    assert [answer for _, answer in answers[:-1]] == [
        {"type": "ack", "seq": 0, "msgs": 3},
        {"type": "ack", "seq": 3, "msgs": 3},
        {"type": "ack", "seq": 6, "msgs": 3},
        {"stream": "F", "seq": 8, "batch": "u", "count": 8},
    ]
    await pair.api("STREAM.MSG.GET.F", {"seq": 1})
    await talk(pair, at(1, START), at(2, APPEND), at(3, END))
    await talk(pair, at(1, COMMIT))
    await talk(pair, at(1, START, flow=2), at(2, APPEND, flow=2), at(3, APPEND, flow=2), at(4, COMMIT, flow=2))


REPLIES = [
    "$FI",
    "x.$FI",
    "u.3.fail.1.0.$FI",
    "_INBOX.fi..3.fail.1.0.$FI",
    "_INBOX.fi.u..fail.1.0.$FI",
    "_INBOX.fi.$FI",
    "fi.u.3.fail.1.0.$FI",
    ".u.3.fail.1.0.$FI",
    "_INBOX.fi.3.fail.1.0.$FI",
    "_INBOX.fi.u.0.fail.1.0.$FI",
    "_INBOX.fi.v.-1.fail.1.0.$FI",
    "_INBOX.fi.w.junk.fail.1.0.$FI",
    "_INBOX.fi.x.99999999999999999999.fail.1.0.$FI",
    "_INBOX.fi.y.70000.fail.1.0.$FI",
    "_INBOX.fi.u.3.maybe.1.0.$FI",
    "_INBOX.fi.u.3.fail.0.0.$FI",
    "_INBOX.fi.u.3.fail.2.0.$FI",
    "_INBOX.fi.u.3.fail.1.1.$FI",
    "_INBOX.fi.u.3.fail.1.3.$FI",
    "_INBOX.fi.z.3.fail.1.4.$FI",
    "_INBOX.fi.z.3.fail.2.4.$FI",
    "_INBOX.fi.z.3.fail.2.1.$FI",
    "_INBOX.fi.z.3.fail.2.2.$FI",
    "_INBOX.fi.z.3.fail.2.3.$FI",
    "_INBOX.fi.z.3.fail.1.5.$FI",
    "_INBOX.fi.z.3.fail.1.x.$FI",
    "_INBOX.fi.z.3.fail.x.0.$FI",
    "_INBOX.fi.z.3.fail.-1.0.$FI",
    f"_INBOX.fi.{'i' * 64}.3.fail.1.2.$FI",
    f"_INBOX.fi.{'i' * 65}.3.fail.1.2.$FI",
    "_INBOX.fi.z.3.fail.18446744073709551615.1.$FI",
    "_INBOX.fi.z.3.fail.18446744073709551614.1.$FI",
    "_INBOX.fi.z.3.fail.99999999999999999999999.1.$FI",
]


@pytest.mark.parametrize("enabled", [True, False])
async def test_reply_subjects(pair, enabled):
    await create(pair, allow_batched=enabled)
    for reply in REPLIES:
        try:
            await talk(pair, at(0, 0, reply=reply))
        except AssertionError as error:
            error.add_note(reply)
            raise
        if enabled:
            await pair.api("STREAM.UPDATE.F", {"name": "F", "subjects": ["f.>"]})
            await pair.api("STREAM.UPDATE.F", {"name": "F", "subjects": ["f.>"], "allow_batched": True})


TALKS = {
    "gap": [at(1, START), at(2, APPEND), at(4, APPEND), at(5, APPEND), at(6, COMMIT)],
    "gap at the commit": [at(1, START), at(3, COMMIT)],
    "gap at the end": [at(1, START), at(3, END)],
    "far end": [at(1, START), at(4, END)],
    "repeat": [at(1, START), at(2, APPEND), at(2, APPEND), at(3, APPEND)],
    "repeated start": [at(1, START), at(1, START), at(2, APPEND)],
    "ping": [at(1, START), at(1, PING), at(2, APPEND), at(2, PING), at(3, APPEND), at(3, PING), at(4, COMMIT)],
    "ping ahead": [at(1, START), at(5, PING), at(6, APPEND), at(2, APPEND)],
    "ping behind": [at(1, START), at(2, APPEND), at(3, APPEND), at(1, PING), at(4, APPEND)],
    "two batches": [
        at(1, START, flow=8),
        at(1, START, flow=8, batch="v"),
        *[
            message
            for number in range(2, 14)
            for message in (at(number, APPEND, flow=8), at(number, APPEND, flow=8, batch="v"))
        ],
        at(14, COMMIT, flow=8),
        *[at(number, APPEND, flow=8, batch="v") for number in range(14, 40)],
        at(40, COMMIT, flow=8, batch="v"),
    ],
    "wide": [
        at(1, START, flow=900),
        *[at(number, APPEND, flow=900) for number in range(2, 510)],
        at(510, COMMIT, flow=900),
    ],
    "bad first": [at(1, START, block(Expected_Stream="X")), at(2, APPEND)],
    "bad first commit": [at(1, COMMIT, block(Expected_Stream="X")), at(2, APPEND)],
    "bad second": [at(1, START), at(2, APPEND, block(Expected_Stream="X")), at(3, APPEND)],
    "bad third of three": [at(1, START), at(2, APPEND), at(3, APPEND, block(Expected_Stream="X")), at(4, APPEND)],
    "bad commit": [at(1, START), at(2, APPEND), at(3, COMMIT, block(Expected_Stream="X")), at(4, APPEND)],
    "expectations": [
        at(1, START, block(Expected_Last_Sequence="0")),
        at(2, APPEND, block(Expected_Last_Sequence="1")),
        at(3, APPEND, block(Expected_Last_Subject_Sequence="2")),
        at(4, COMMIT, block(Expected_Last_Subject_Sequence="3")),
    ],
    "last id": [at(1, START, block(Msg_Id="a")), at(2, COMMIT, block(Expected_Last_Msg_Id="a"))],
    "duplicates": [
        at(1, START, block(Msg_Id="a")),
        at(2, APPEND, block(Msg_Id="a")),
        at(3, APPEND, block(Msg_Id="b")),
        at(4, APPEND, block(Msg_Id="b")),
        at(5, COMMIT, block(Msg_Id="c")),
    ],
    "only duplicates": [
        at(1, COMMIT, block(Msg_Id="a"), batch="v"),
        at(1, START, block(Msg_Id="a")),
        at(2, APPEND, block(Msg_Id="a")),
        at(3, END),
        at(1, COMMIT, block(Msg_Id="a"), batch="w"),
        at(1, START, block(Msg_Id="a"), batch="x"),
        at(2, COMMIT, block(Msg_Id="a"), batch="x"),
    ],
    "level": [at(1, START, block(Required_Api_Level="9")), at(2, APPEND)],
    "level later": [at(1, START), at(2, APPEND, block(Required_Api_Level="9")), at(3, COMMIT)],
    "atomic headers": [at(1, START, block(Batch_Id="y", Batch_Sequence="1")), at(2, COMMIT)],
    "rollup": [at(1, START), at(2, APPEND, block(Rollup="sub")), at(3, COMMIT)],
    "large": [at(1, START), at(2, APPEND, payload=b"x" * 200), at(2, APPEND), at(3, COMMIT)],
    "large first": [at(1, START, payload=b"x" * 200), at(2, APPEND)],
    "another prefix": [at(1, START), at(2, APPEND, reply="_INBOX.other.u.3.fail.2.1.$FI"), at(3, COMMIT)],
    "other settings later": [at(1, START), at(2, APPEND, flow=1, gap="ok"), at(4, APPEND), at(5, COMMIT)],
    "after the commit": [at(1, START), at(2, COMMIT), at(3, APPEND), at(4, PING), at(5, END)],
}


async def test_the_required_level_is_not_stored(pair):
    await create(pair)
    level = block(Required_Api_Level="4")
    with_id = block(Required_Api_Level="4", Msg_Id="a")
    await talk(pair, at(1, START, level), at(2, APPEND, with_id), at(3, COMMIT, level))
    for sequence in (1, 2, 3):
        await pair.api("STREAM.MSG.GET.F", {"seq": sequence})


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("gap", ["fail", "ok"])
@pytest.mark.parametrize("config", [{}, {"allow_rollup_hdrs": True, "max_msg_size": 100, "max_msgs": 5}])
async def test_conversations(pair, gap, config, together):
    differences = []
    for name, messages in TALKS.items():
        await create(pair, **config)
        messages = [
            (subject, payload, reply.replace(".fail.", f".{gap}."), header)
            for subject, payload, reply, header in messages
        ]
        try:
            await talk(pair, *messages, together=together)
        except AssertionError as error:
            differences.append(f"{name}:\n{error}")
        await pair.api("STREAM.DELETE.F")
    assert not differences, "\n".join(differences)
