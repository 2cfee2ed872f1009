"""In order, once each, and where to begin again."""

import pytest

from jetlake.client.messages.message import Message
from jetlake.client.ordered.ordered_state import OrderedState
from jetlake.errors import NotJetStreamMessageError
from jetlake.model.ack_subject import consumer_sequence
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo, SequenceInfo
from jetlake.model.enums import DeliverPolicy

POLICY = DeliverPolicy


def delivered(consumer_seq, stream_seq=None, pending=1, version=1):
    stream_seq = consumer_seq if stream_seq is None else stream_seq
    numbers = f"1.{stream_seq}.{consumer_seq}.1790000000000000000.{pending}"
    reply = f"$JS.ACK.S.C.{numbers}" if version == 1 else f"$JS.ACK._.hash.S.C.{numbers}.extra"
    return Message(b"s", b"1", reply.encode(), b"", b"")


def run(first, last, **options):
    return [delivered(number, **options) for number in range(first, last + 1)]


def state(**config):
    ordered = OrderedState(ConsumerConfig(name="p", **config), "ordered_x")
    ordered.next_config()
    return ordered


def created(ordered, stream_seq, pending=0):
    ordered.created(ConsumerInfo(delivered=SequenceInfo(stream_seq=stream_seq), num_pending=pending))


@pytest.mark.parametrize("version", [1, 2])
def test_what_follows_is_taken(version):
    ordered = state()
    assert len(ordered.accept(run(1, 5, version=version))) == 5
    assert len(ordered.accept(run(6, 6, version=version))) == 1
    assert ordered.last_stream_seq == 6
    assert ordered.gap is None


@pytest.mark.parametrize("version", [1, 2])
def test_the_number_of_a_delivery(version):
    assert consumer_sequence(delivered(7, 99, version=version).raw_reply) == 7


@pytest.mark.parametrize("reply", [b"", b"$JS.ACK.S.C.1.2", b"$JS.ACK.S.C.1.2.x.4.5", b"_INBOX.a"])
def test_no_delivery(reply):
    with pytest.raises(NotJetStreamMessageError):
        consumer_sequence(reply)


def test_a_gap_between_two_reads():
    ordered = state()
    ordered.accept(run(1, 3))
    assert ordered.accept(run(5, 6)) == []
    assert (ordered.gap.expected, ordered.gap.received) == (4, 5)
    # Nothing more is taken from this consumer.
    assert ordered.accept(run(4, 4)) == []
    assert ordered.last_stream_seq == 3


def test_a_gap_within_a_read_keeps_what_came_before_it():
    ordered = state()
    messages = run(1, 3) + run(5, 9)
    assert ordered.accept(messages) == messages[:3]
    assert ordered.gap.expected == 4
    assert ordered.last_stream_seq == 3


def test_begins_again_behind_the_last_good_message():
    ordered = state()
    ordered.accept([delivered(1, 10), delivered(2, 20)])
    ordered.accept([delivered(4, 40)])
    config = ordered.next_config()
    assert (config.deliver_policy, config.opt_start_seq) == (POLICY.BY_START_SEQUENCE, 21)
    assert config.name == "ordered_x_2"
    assert ordered.resets == 1
    assert len(ordered.accept([delivered(1, 21), delivered(2, 40)])) == 2
    assert ordered.last_stream_seq == 40


@pytest.mark.parametrize(
    ("policy", "extra", "position"),
    [
        (POLICY.NEW, {}, 100),
        (POLICY.LAST, {}, 99),
        (POLICY.BY_START_SEQUENCE, {"opt_start_seq": 50}, 49),
        (POLICY.BY_START_TIME, {"opt_start_time": "2026-01-01T00:00:00Z"}, 70),
        (POLICY.ALL, {}, 0),
    ],
)
def test_before_the_first_message_it_begins_where_the_first_consumer_stood(policy, extra, position):
    ordered = OrderedState(ConsumerConfig(deliver_policy=policy, **extra), "x")
    first = ordered.next_config()
    assert first.deliver_policy is policy
    created(ordered, position)
    again = ordered.next_config()
    assert (again.deliver_policy, again.opt_start_seq) == (POLICY.BY_START_SEQUENCE, position + 1)
    assert again.opt_start_time is None


def test_an_empty_snapshot_is_read_at_once_so_that_no_change_behind_it_is_left_out():
    ordered = state(deliver_policy=POLICY.LAST_PER_SUBJECT)
    created(ordered, 4)
    assert ordered.pending_at_start == 0
    again = ordered.next_config()
    assert (again.deliver_policy, again.opt_start_seq) == (POLICY.BY_START_SEQUENCE, 5)


def test_a_snapshot_of_last_messages_is_taken_again_and_what_was_read_is_skipped():
    ordered = OrderedState(ConsumerConfig(deliver_policy=POLICY.LAST_PER_SUBJECT), "x")
    ordered.next_config()
    created(ordered, 4, pending=3)
    ordered.accept([delivered(1, 5, pending=2), delivered(2, 8, pending=1)])
    again = ordered.next_config()
    assert again.deliver_policy is POLICY.LAST_PER_SUBJECT
    fresh = ordered.accept([delivered(1, 5, pending=2), delivered(2, 8, pending=1), delivered(3, 9, pending=0)])
    assert [one.metadata.stream_seq for one in fresh] == [9]
    # The snapshot is read: from now on a sequence is enough.
    assert ordered.next_config().opt_start_seq == 10


def test_a_heartbeat_tells_of_deliveries_that_never_came():
    ordered = state()
    ordered.accept(run(1, 3))
    assert ordered.heard_heartbeat(3)
    assert not ordered.heard_heartbeat(5)
    assert (ordered.gap.expected, ordered.gap.received) == (4, 6)


def test_an_old_delivery_again_is_a_gap_too():
    ordered = state()
    ordered.accept(run(1, 3))
    assert ordered.accept(run(3, 4)) == []
    assert ordered.gap is not None
