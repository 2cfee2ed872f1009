"""Counters on bad days: totals that are none, that cannot be read, that grow too long, and servers that die."""

from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.server.engine.stream.headers import INCREMENT
from jetlake.store.store_folder import StoreFolder
from tests.support.faulty_disk import FaultyDisk

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


@pytest.mark.parametrize("seed", range(5))
def test_what_was_acknowledged_is_in_the_sum_after_a_power_cut(make_harness, seed):
    disk = FaultyDisk(Random(seed))

    def start():
        return make_harness(FolderStorage(StoreFolder(disk, Path("/data")), lambda line: None))

    harness = start()
    harness.create(allow_msg_counter=True)
    for total in range(1, 4):
        assert add(harness, "1")["val"] == str(total)
    harness.publish("s.a", b"", {INCREMENT.decode(): "100"}, reply=b"_INBOX.r.0")
    harness.engine.flush()
    disk.cut_power()
    assert add(start(), "1")["val"] in ("4", "104"), "what was not acknowledged may be there, but whole"
