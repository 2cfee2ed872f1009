"""The account of a range: only what the stream's leader counts as deleted may be missing."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from jetlake.client.tables import range_reader
from jetlake.client.tables.planning import ReadPartition
from jetlake.client.tables.range_reader import RangeAccount, read_range
from jetlake.errors import ConnectionClosedError, ProtocolError
from jetlake.model.stream import StreamConfig, StreamInfo, StreamState


class Account(RangeAccount):
    """An account whose server is a value."""

    def __init__(self, deleted):
        super().__init__(ReadPartition("S", 1, 101, (), "direct"), SimpleNamespace(fail_on_data_loss=True))
        self.deleted = deleted

    def stream_info(self):
        state = StreamState(messages=100 - self.deleted, first_seq=1, last_seq=100, num_deleted=self.deleted)
        return StreamInfo(config=StreamConfig.of("S"), created="2026-01-01T00:00:00Z", state=state)


def read(account, sequences):
    account.take(np.array(sequences))
    account.close()


def test_deleted_messages_are_no_loss():
    read(Account(deleted=90), range(91, 101))
    read(Account(deleted=1), [number for number in range(1, 101) if number != 50])


def test_messages_that_the_leader_has_must_come():
    for came in (range(91, 101), range(1, 11), [1, 100]):
        with pytest.raises(ProtocolError, match="its leader counts only 5 deleted"):
            read(Account(deleted=5), came)


def test_a_read_goes_on_behind_the_last_message_when_its_connection_breaks(monkeypatch):
    begins = []

    def read(connection, partition, options, first):
        """Give two messages, and break."""
        begins.append(first)
        yield SimpleNamespace(sequence=np.array([first, first + 1]))
        if first < 5:
            raise ConnectionClosedError("broken")

    monkeypatch.setitem(range_reader._READERS, "direct", read)
    partition = ReadPartition("S", 1, 7, (), "direct", runs=((1, 6),))
    link = SimpleNamespace(retry_for_s=60, lease=lambda: nullcontext())
    messages = list(read_range(partition, SimpleNamespace(connection=link, fail_on_data_loss=True)))
    assert [sequence for found in messages for sequence in found.sequence] == [1, 2, 3, 4, 5, 6]
    assert begins == [1, 3, 5]
