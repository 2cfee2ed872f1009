"""What every status on a pull's inbox means."""

import pytest

from jetlake.client.messages.message import Message
from jetlake.client.pull.pull_status import PullOutcome, PullStatus, classify, read_status


@pytest.mark.parametrize(
    ("number", "description", "outcome"),
    [
        (100, "Idle Heartbeat", PullOutcome.HEARTBEAT),
        (404, "No Messages", PullOutcome.ENDED),
        (408, "Request Timeout", PullOutcome.ENDED),
        (408, "Requests Pending", PullOutcome.ENDED),
        (408, "Interest Expired", PullOutcome.ENDED),
        (409, "Message Size Exceeds MaxBytes", PullOutcome.ENDED),
        (409, "Batch Completed", PullOutcome.ENDED),
        (409, "Server Shutdown", PullOutcome.ENDED),
        (409, "Leadership Change", PullOutcome.LOST),
        (409, "Exceeded MaxWaiting", PullOutcome.REFUSED),
        (409, "Consumer Deleted", PullOutcome.DELETED),
        (409, "Consumer is push based", PullOutcome.TERMINAL),
        (409, "Exceeded MaxRequestBatch of 5", PullOutcome.TERMINAL),
        (409, "Exceeded MaxRequestExpires of 5s", PullOutcome.TERMINAL),
        (409, "Exceeded MaxRequestMaxBytes of 1000", PullOutcome.TERMINAL),
        (423, "Nats-Wrong-Pin-Id", PullOutcome.UNPINNED),
        (423, "Nats-Pin-Id mismatch", PullOutcome.UNPINNED),
        (400, "Bad Request - Priority Group missing", PullOutcome.TERMINAL),
        (412, "Required Api Level", PullOutcome.TERMINAL),
        (503, "", PullOutcome.UNAVAILABLE),
    ],
)
def test_known_statuses(number, description, outcome):
    assert classify(PullStatus(number, description)) is outcome
    # What can never succeed is terminal, although the headers say what was left.
    assert classify(PullStatus(number, description, 3, 0)) is outcome


def test_an_unknown_status_is_terminal_unless_it_says_what_was_left():
    assert classify(PullStatus(499, "Something New")) is PullOutcome.TERMINAL
    assert classify(PullStatus(409, "Something New")) is PullOutcome.TERMINAL
    assert classify(PullStatus(499, "Something New", 3, 0)) is PullOutcome.ENDED
    assert classify(PullStatus(409, "Something New", 0, 0)) is PullOutcome.ENDED


def test_is_read_from_the_header():
    header = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 77\r\n\r\n"
    assert read_status(Message(b"i", b"1", b"", header, b"")) == PullStatus(408, "Request Timeout", 3, 77)
    header = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 4\r\nNats-Last-Stream: 9\r\n\r\n"
    assert read_status(Message(b"i", b"1", b"", header, b"")) == PullStatus(100, "Idle Heartbeat", None, None, 4)
    header = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: many\r\n\r\n"
    assert read_status(Message(b"i", b"1", b"", header, b"")).pending_messages is None


def test_no_count_is_negative():
    header = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: -3\r\nNats-Pending-Bytes: -77\r\n\r\n"
    assert read_status(Message(b"i", b"1", b"", header, b"")) == PullStatus(408, "Request Timeout", 0, 0)
