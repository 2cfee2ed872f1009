"""Counters that cannot count: totals that are none, that cannot be read, and that grow too long."""

import pytest

from jetlake.errors import StoreError
from jetlake.server.engine.message_headers import INCREMENT

LONG = "9" * 4000


def add(harness, increment):
    return harness.store("s.a", b"", {INCREMENT.decode(): increment})


@pytest.mark.parametrize("payload", [b"", b"5", b"{}", b'{"val":5}', b'{"val":"five"}', b'{"val":""}'])
def test_a_newest_message_without_a_total(harness, payload):
    stream = harness.create(allow_msg_counter=True)
    stream.store.append(b"s.a", b"", payload, harness.clock.now_ns())
    assert add(harness, "1")["error"]["err_code"] == 10172


def test_a_newest_message_that_cannot_be_read(harness, monkeypatch):
    stream = harness.create(allow_msg_counter=True)
    assert add(harness, "1")["val"] == "1"

    def refuse(sequence):
        raise StoreError("read", "the disk does not give it back")

    with monkeypatch.context() as patch:
        patch.setattr(stream.store, "get", refuse)
        assert add(harness, "1")["error"]["err_code"] == 10172
    assert add(harness, "1")["val"] == "2"


def test_numbers_have_an_end(harness):
    harness.create(allow_msg_counter=True)
    assert add(harness, LONG)["val"] == LONG
    assert add(harness, "1")["error"]["err_code"] == 10171
    assert add(harness, "0" + LONG)["error"]["err_code"] == 10171
    assert add(harness, "-1")["val"] == LONG[:-1] + "8"
