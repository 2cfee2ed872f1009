"""The window of a push consumer: when the subscriber is asked, when delivery stalls, how the window grows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.server.engine.consumer.flow_control import WINDOW_MAX, WINDOW_START, FlowControl
from jetlake.server.engine.consumer.push_delivery import stored_sequences

MIB = 1024 * 1024


def test_it_begins_with_two_mebibytes():
    assert WINDOW_START == 2 * MIB
    assert not FlowControl().is_stalled


def test_half_a_window_asks_once():
    control = FlowControl()
    assert not control.sent(MIB)
    assert control.sent(1)
    control.ask(b"fc.1")
    assert not control.sent(MIB // 2)
    assert not control.is_stalled
    control.sent(MIB // 2)
    assert control.is_stalled


def test_the_answer_takes_off_what_was_sent_before_the_question():
    control = FlowControl()
    control.sent(MIB + 10)
    control.ask(b"fc.1")
    control.sent(500)
    assert not control.answer(b"fc.0")
    assert control.answer(b"fc.1")
    assert (control.pending, control.window, control.outstanding) == (500, 4 * MIB, b"")
    assert not control.answer(b"fc.1")
    assert not control.answer(b"")


def test_the_window_has_an_end():
    control = FlowControl()
    for number in range(20):
        control.ask(b"%d" % number)
        control.answer(b"%d" % number)
    assert control.window == WINDOW_MAX == 32 * MIB


def test_another_subscriber_begins_anew():
    control = FlowControl()
    control.sent(5 * MIB)
    control.ask(b"fc")
    control.restart()
    assert (control.pending, control.outstanding, control.window) == (0, b"", WINDOW_START)


@given(st.lists(st.integers(1, 80 * MIB), min_size=1, max_size=60))
def test_an_answer_always_opens_the_window(sizes):
    """Send while there is room and answer when it is full: nobody is ever stuck, whatever the sizes."""
    control = FlowControl()
    for number, size in enumerate(sizes):
        if control.is_stalled:
            assert control.answer(control.outstanding)
            assert not control.is_stalled
        if control.sent(size):
            control.ask(b"fc.%d" % number)
        assert control.outstanding or not control.is_stalled


@pytest.mark.parametrize(
    ("header", "sequences"),
    [
        (b"", None),
        (b"NATS/1.0\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: 7\r\n\r\n", (7, 2)),
        (b"NATS/1.0\r\nNats-Last-Consumer: 2\r\n\r\n", None),
        (b"NATS/1.0\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: x\r\n\r\n", None),
        (b"NATS/1.0\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: %b\r\n\r\n" % (b"9" * 5000), None),
    ],
)
def test_what_a_subscriber_has_stored(header, sequences):
    assert stored_sequences(header) == sequences
