"""Automatic status management of push consumers (NATS ADR-15)."""

import pytest

from jetlake.client.messages.message import Message
from jetlake.client.subscribe.push_status import PushStatus
from jetlake.errors import HeartbeatMissedError, PullStatusError, SequenceGapError


def watch(heartbeat=0.0, checks_gaps=True, alarm_s=None, delivered=None):
    return PushStatus(heartbeat, checks_gaps=checks_gaps, now=0.0, alarm_s=alarm_s, delivered=delivered)


def delivered(number, stream_seq=None):
    reply = f"$JS.ACK.S.C.1.{stream_seq or number}.{number}.1790000000000000000.0"
    return Message(b"s", b"1", reply.encode(), b"", b"payload")


def status(number, words="", reply=b"", **headers):
    lines = [f"NATS/1.0 {number} {words}", *(f"{key.replace('_', '-')}: {value}" for key, value in headers.items())]
    return Message(b"deliver", b"1", reply, ("\r\n".join(lines) + "\r\n\r\n").encode(), b"")


def heartbeat(last_consumer, last_stream=0, stalled=None):
    more = {} if stalled is None else {"Nats_Consumer_Stalled": stalled}
    return status(100, "Idle Heartbeat", Nats_Last_Consumer=last_consumer, Nats_Last_Stream=last_stream, **more)


def test_messages_pass():
    messages = [delivered(1), delivered(2)]
    news = watch().received(messages, 0.0)
    assert news.messages == messages
    assert (news.flow_replies, news.notices, news.error) == ([], [], None)


def test_a_message_with_headers_and_no_payload_is_no_status():
    message = Message(b"s", b"1", b"$JS.ACK.S.C.1.1.1.1.0", b"NATS/1.0\r\nA: 1\r\n\r\n", b"")
    assert watch().received([message], 0.0).messages == [message]


def test_a_gap_in_deliveries_is_noticed_once_and_reading_goes_on():
    push = watch()
    news = push.received([delivered(1), delivered(4, 14), delivered(5)], 0.0)
    assert len(news.messages) == 3
    assert [(gap.expected, gap.received, gap.stream_seq) for gap in news.notices] == [(2, 4, 14)]
    assert push.received([delivered(6)], 0.0).notices == []


def test_the_first_delivery_may_have_any_number():
    assert watch().received([delivered(100)], 0.0).notices == []


@pytest.mark.parametrize("before", [0, 41])
def test_a_lost_first_delivery_is_a_gap(before):
    (gap,) = watch(delivered=before).received([delivered(before + 2)], 0.0).notices
    assert (gap.expected, gap.received) == (before + 1, before + 2)
    (gap,) = watch(heartbeat=1, delivered=before).received([heartbeat(before + 1)], 0.0).notices
    assert (gap.expected, gap.received) == (before + 1, before + 2)
    assert watch(heartbeat=1, delivered=before).received([heartbeat(before), delivered(before + 1)], 0.0).notices == []
    assert watch(delivered=before, checks_gaps=False).received([delivered(before + 2)], 0.0).notices == []


def test_a_heartbeat_tells_of_a_gap():
    push = watch(heartbeat=1)
    push.received([delivered(1)], 0.0)
    assert push.received([heartbeat(1)], 0.0).notices == []
    (gap,) = push.received([heartbeat(3, 33)], 0.0).notices
    assert isinstance(gap, SequenceGapError)
    assert (gap.expected, gap.received, gap.stream_seq) == (2, 4, 33)
    assert push.received([heartbeat(3, 33), delivered(4)], 0.0).notices == []


def test_queues_have_no_gaps():
    push = watch(checks_gaps=False)
    assert push.received([delivered(1), delivered(9), heartbeat(20)], 0.0).notices == []


def test_flow_control_is_answered_behind_the_messages_before_it():
    flow = status(100, "FlowControl Request", reply=b"$JS.FC.S.C.abcd")
    news = watch().received([delivered(1), delivered(2), flow, delivered(3)], 0.0)
    assert len(news.messages) == 3
    assert news.flow_replies == [(2, b"$JS.FC.S.C.abcd")]


def test_a_stalled_heartbeat_is_answered_once():
    push = watch(heartbeat=1)
    assert push.received([heartbeat(0, stalled="$JS.FC.1")], 0.0).flow_replies == [(0, b"$JS.FC.1")]
    assert push.received([heartbeat(0, stalled="$JS.FC.1")], 0.0).flow_replies == []
    again = status(100, "FlowControl Request", reply=b"$JS.FC.1")
    assert push.received([again], 0.0).flow_replies == []
    assert push.received([heartbeat(0, stalled="$JS.FC.2")], 0.0).flow_replies == [(0, b"$JS.FC.2")]


@pytest.mark.parametrize("number", [404, 408])
def test_empty_pulls_are_swallowed(number):
    news = watch().received([status(number, "No Messages")], 0.0)
    assert (news.messages, news.error) == ([], None)


@pytest.mark.parametrize(("number", "words"), [(409, "Conflict"), (503, ""), (599, "Unheard Of")])
def test_errors_and_unknown_statuses_are_raised(number, words):
    news = watch().received([delivered(1), status(number, words)], 0.0)
    assert len(news.messages) == 1
    assert type(news.error) is PullStatusError
    assert (news.error.status, news.error.description) == (number, words)


def test_the_alarm_comes_after_three_intervals():
    push = watch(heartbeat=2)
    assert push.deadline() == 6
    assert push.alarm(5.9) is None
    assert type(push.alarm(6.0)) is HeartbeatMissedError
    # And again after as much silence.
    assert push.alarm(11.9) is None
    assert push.alarm(12.0) is not None


def test_everything_that_comes_resets_the_alarm():
    push = watch(heartbeat=2)
    push.received([delivered(1)], 5.0)
    assert push.alarm(10.9) is None
    push.received([heartbeat(1)], 10.0)
    assert push.deadline() == 16


def test_the_alarm_may_be_set():
    assert watch(heartbeat=2, alarm_s=3).deadline() == 3


def test_no_heartbeat_no_alarm():
    push = watch()
    assert push.deadline() is None
    assert push.alarm(1e9) is None


def test_no_alarm_without_a_connection():
    push = watch(heartbeat=2)
    push.disconnected()
    assert push.deadline() is None
    assert push.alarm(100.0) is None
    push.reconnected(100.0)
    assert push.deadline() == 106


def test_somebody_else_may_publish_to_the_deliver_subject():
    message = Message(b"deliver", b"1", b"", b"", b"hello")
    news = watch().received([delivered(1), message, delivered(2)], 0.0)
    assert len(news.messages) == 3
    assert news.notices == []
