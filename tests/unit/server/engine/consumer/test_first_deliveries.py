import pytest

from jetlake.protocol.encoder import hmsg, msg
from jetlake.server.engine.consumer.feed import FirstDeliveries
from jetlake.store.message import MessageColumns, StoredMessage

HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"
STORED = [
    StoredMessage(7, 1_700_000_000_000_000_000, b"s.a", b"", b"one"),
    StoredMessage(9, 1_700_000_000_000_000_001, b"s.%d", HEADER, b"two"),
    StoredMessage(10, 1_700_000_000_000_000_002, b"s.c", b"", b""),
]
# The consumer's name has a percent sign.
TEMPLATE = b"$JS.ACK.S.c%%d.1.%d.%d.%d.%d"


def test_messages_carry_ascending_consumer_sequences_and_falling_pending_counts():
    run = FirstDeliveries(MessageColumns.of(STORED), TEMPLATE, 4, 12)
    assert run.messages() == [
        (b"s.a", b"$JS.ACK.S.c%d.1.7.4.1700000000000000000.12", b"", b"one"),
        (b"s.%d", b"$JS.ACK.S.c%d.1.9.5.1700000000000000001.11", HEADER, b"two"),
        (b"s.c", b"$JS.ACK.S.c%d.1.10.6.1700000000000000002.10", b"", b""),
    ]


PLAIN = [stored for stored in STORED if not stored.header]


@pytest.mark.parametrize("headers", [True, False])
@pytest.mark.parametrize("sid", [b"3", b"%b%"])
@pytest.mark.parametrize(
    "stored", [STORED, STORED * 5, PLAIN * 8, PLAIN[:1] * 9], ids=["few", "many", "plain", "alike"]
)
@pytest.mark.parametrize("pending", [12, 50])
def test_a_run_is_encoded_as_its_messages_are(sid, headers, stored, pending):
    run = FirstDeliveries(MessageColumns.of(stored), TEMPLATE, 4, pending)
    frames, count, size = run.encode(sid, headers=headers)
    assert frames == b"".join(
        hmsg(subject, sid, reply, header, payload) if header and headers else msg(subject, sid, reply, payload)
        for subject, reply, header, payload in run.messages()
    )
    assert count == len(stored)
    assert size == sum(len(message.payload) + len(message.header) * headers for message in stored)


def test_a_count_that_is_behind_never_shows_less_than_no_pending_messages():
    run = FirstDeliveries(MessageColumns.of(STORED), TEMPLATE, 4, 1)
    assert [reply.rpartition(b".")[2] for _, reply, _, _ in run.messages()] == [b"1", b"0", b"0"]
