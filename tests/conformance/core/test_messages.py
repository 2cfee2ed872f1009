"""Messages: who gets which, framed how, and how often."""

from collections import Counter

import pytest

# Pattern, subject, and whether the one takes the other.
MATCHES = [
    ("a", "a", True),
    ("a", "b", False),
    ("a.b", "a.b", True),
    ("a.b", "a", False),
    ("a.b", "a.b.c", False),
    ("*", "a", True),
    ("*", "a.b", False),
    ("*", ">", True),
    ("*", "*", True),
    (">", "a", True),
    (">", "a.b.c", True),
    (">", "*", True),
    ("a.*", "a.b", True),
    ("a.*", "a", False),
    ("a.*", "a.b.c", False),
    ("a.*", "a.>", True),
    ("a.*", "b.a", False),
    ("*.b", "a.b", True),
    ("*.b", "b", False),
    ("*.b", "*.b", True),
    ("a.*.c", "a.b.c", True),
    ("a.*.c", "a.b.d", False),
    ("a.*.c", "a.c", False),
    ("*.*", "a.b", True),
    ("*.*", "a", False),
    ("a.>", "a.b", True),
    ("a.>", "a.b.c.d", True),
    ("a.>", "a", False),
    ("a.>", "b.a", False),
    ("a.>", "a.*", True),
    ("a.*.>", "a.b.c", True),
    ("a.*.>", "a.b", False),
    ("*.>", "a.b", True),
    ("*.>", "a", False),
    ("foo*", "foo*", True),
    ("foo*", "foobar", False),
    ("foo*", "foo", False),
    ("a>", "a>", True),
    ("a>", "a.b", False),
    ("a.b>", "a.bc", False),
    ("A", "a", False),
    ("ü.é", "ü.é", True),
    (">", "a..b", False),
    (">", ".a", False),
    ("a.*", "a.", False),
]


async def test_patterns(core_wire):
    wire = core_wire
    patterns = sorted({pattern for pattern, _, _ in MATCHES})
    sids = {pattern: str(number) for number, pattern in enumerate(patterns)}
    for pattern, sid in sids.items():
        await wire.subscribe(pattern, sid)
    outcome = {}
    for subject in sorted({subject for _, subject, _ in MATCHES}):
        await wire.publish(subject)
        received = await wire.ping()
        takers = {line.split(b" ")[2].decode() for line in received.split(b"\r\n") if line.startswith(b"MSG ")}
        outcome |= {(pattern, subject): sids[pattern] in takers for pattern in patterns}
    assert {(p, s): outcome[p, s] for p, s, _ in MATCHES} == {(p, s): expected for p, s, expected in MATCHES}


async def test_headers_pass_through_as_they_are(core_wire):
    wire = core_wire
    await wire.subscribe("h", 1)
    for header in (b"NATS/1.0\r\nA: b\r\n\r\n", b"garbage\x00\xff", b"NATS/1.0 503\r\n\r\n"):
        await wire.publish("h", b"\x00\xffbody", header=header, reply="r")
        message = await wire.message()
        assert (message.header, message.payload, message.reply) == (header, b"\x00\xffbody", "r")


async def test_header_of_no_bytes_is_none(core_wire):
    await core_wire.send(b"SUB x 1\r\nHPUB x 0 2\r\nhi\r\n")
    assert await core_wire.ping() == b"MSG x 1 2\r\nhi\r\n"


async def test_headers_are_stripped_for_clients_without(core, core_wire, connect):
    plain = await connect(core)
    await plain.send(b'CONNECT {"verbose":false,"headers":false}\r\nSUB h 1\r\n')
    await plain.ping()
    await core_wire.publish("h", b"body", header=b"NATS/1.0\r\nA: b\r\n\r\n")
    await core_wire.ping()
    assert await plain.ping() == b"MSG h 1 4\r\nbody\r\n"


async def test_unsubscribe_at_once(core_wire):
    await core_wire.send(b"SUB a 1\r\nPUB a 0\r\n\r\nUNSUB 1\r\nPUB a 0\r\n\r\n")
    assert await core_wire.ping() == b"MSG a 1 0\r\n\r\n"


@pytest.mark.parametrize(
    ("before", "limit", "after", "received"), [(0, 2, 5, 2), (1, 3, 5, 3), (3, 3, 2, 3), (4, 2, 2, 4)]
)
async def test_unsubscribe_with_a_maximum(core_wire, before, limit, after, received):
    publish = b"PUB a 0\r\n\r\n"
    await core_wire.send(b"SUB a 1\r\n" + publish * before + b"UNSUB 1 %d\r\n" % limit + publish * after)
    assert (await core_wire.ping()).count(b"MSG a 1 0\r\n\r\n") == received


async def test_maximum_counts_for_queue_members_too(core_wire):
    await core_wire.send(b"SUB a q 1\r\nUNSUB 1 2\r\n" + b"PUB a 0\r\n\r\n" * 4)
    assert (await core_wire.ping()).count(b"MSG") == 2


async def test_a_sid_can_be_used_again(core_wire):
    await core_wire.send(b"SUB a 1\r\nUNSUB 1 1\r\nPUB a 0\r\n\r\nSUB b 1\r\nPUB b 0\r\n\r\nUNSUB 1\r\nSUB c 1\r\n")
    await core_wire.publish("c")
    assert await core_wire.ping() == b"MSG a 1 0\r\n\r\nMSG b 1 0\r\n\r\nMSG c 1 0\r\n\r\n"


async def test_queue_groups_share_and_plain_subscriptions_get_all(core, core_wire, connect):
    members = [await (await connect(core)).hello() for _ in range(3)]
    for member in members:
        await member.subscribe("work", 1, "workers")
        await member.ping()
    await core_wire.subscribe("work", 1)
    await core_wire.send(b"PUB work 0\r\n\r\n" * 300)
    assert (await core_wire.ping()).count(b"MSG work 1 0") == 300
    counts = [(await member.ping()).count(b"MSG work 1 0") for member in members]
    assert sum(counts) == 300
    assert min(counts) > 40


async def test_each_group_gets_its_copy(core_wire):
    await core_wire.send(b"SUB w a 1\r\nSUB w a 2\r\nSUB w b 3\r\nSUB * a 4\r\n" + b"PUB w 0\r\n\r\n" * 50)
    received = Counter(line.split(b" ")[2] for line in (await core_wire.ping()).split(b"\r\n") if line)
    assert received[b"3"] == 50
    assert received[b"1"] + received[b"2"] + received[b"4"] == 50


async def test_order_from_one_publisher_is_kept(core, core_wire, connect):
    reader = await (await connect(core)).hello()
    await reader.send(b"SUB n.> 1\r\nSUB n.* 2\r\n")
    await reader.ping()
    await core_wire.send(b"".join(b"PUB n.%d 4\r\n%04d\r\n" % (number % 7, number) for number in range(2000)))
    await core_wire.ping()
    messages = await reader.messages(4000)
    for sid in ("1", "2"):
        assert [int(message.payload) for message in messages if message.sid == sid] == list(range(2000))


async def test_echo_off(core, connect):
    quiet = await (await connect(core)).hello(echo=False)
    other = await (await connect(core)).hello()
    await quiet.send(b"SUB e 1\r\nSUB e q 2\r\n")
    await other.send(b"SUB e 1\r\n")
    await other.ping()
    await quiet.publish("e")
    assert await quiet.ping() == b""
    assert await other.ping() == b"MSG e 1 0\r\n\r\n"
    await other.publish("e")
    await other.ping()
    assert sorted((await quiet.ping()).split()) == sorted(b"MSG e 1 0 MSG e 2 0".split())


async def test_no_responders(core, core_wire, connect):
    wire = core_wire
    await wire.subscribe("inbox.*", 9)
    await wire.publish("nobody.here", b"?", reply="inbox.1")
    message = await wire.message()
    assert (message.subject, message.sid, message.payload) == ("inbox.1", "9", b"")
    assert message.header == b"NATS/1.0 503\r\nNats-Subject: nobody.here\r\n\r\n"
    # Without a reply, without a subscription of one's own on it, or without the option, nothing is said.
    await wire.publish("nobody.here")
    await wire.publish("nobody.here", reply="elsewhere")
    assert await wire.ping() == b""
    old = await (await connect(core)).hello(no_responders=False)
    await old.subscribe("mine", 1)
    await old.publish("nobody.here", reply="mine")
    assert await old.ping() == b""


async def test_a_queue_member_is_a_responder(core, core_wire, connect):
    worker = await (await connect(core)).hello()
    await worker.subscribe("svc", 1, "q")
    await worker.ping()
    await core_wire.send(b"SUB in 1\r\nPUB svc in 0\r\n\r\n")
    assert await core_wire.ping() == b""
    message = await worker.message()
    await worker.publish(message.reply, b"yes")
    assert (await core_wire.message()).payload == b"yes"


async def test_payloads_of_every_size(core_wire):
    await core_wire.subscribe("big", 1)
    for size in (0, 1, 1000, 65_536, 300_000, 1_048_576):
        await core_wire.publish("big", b"x" * size)
        assert len((await core_wire.message()).payload) == size


async def test_leaving_ends_subscriptions(core, core_wire, connect):
    other = await (await connect(core)).hello()
    await other.subscribe("gone", 1)
    await other.ping()
    await other.close()
    await core_wire.subscribe("in", 1)
    for _ in range(100):
        await core_wire.publish("gone", reply="in")
        if (await core_wire.ping()).startswith(b"HMSG in 1"):
            return
    raise AssertionError("the subscription of a client that has left is still there")
