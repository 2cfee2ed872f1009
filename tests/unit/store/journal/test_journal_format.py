"""Records of a journal: what is read past a damaged one, and how much work that is."""

from __future__ import annotations

import pytest

from jetlake.store.files.checksum import PLAIN_HASHING
from jetlake.store.journal import journal_format
from jetlake.store.journal.consumer_state import ConsumerState
from jetlake.store.journal.file_journal import encode_state
from jetlake.store.journal.journal_format import ENTRY_KINDS, SAFE

CHECKSUM = journal_format.checksum_of(PLAIN_HASHING, 7, 1)


def test_a_damaged_state_is_passed_over_without_hashing_at_each_number() -> None:
    pending = {1000 + 2 * place: (place + 1, 10**18 + place, 1) for place in range(2000)}
    state = journal_format.pack_record(encode_state(ConsumerState(pending=pending)), CHECKSUM)
    last = journal_format.pack_record(SAFE, CHECKSUM)
    data = bytearray(journal_format.pack_header(PLAIN_HASHING, 7, 1) + 2 * state + last)
    data[journal_format.HEADER_SIZE + 100] ^= 1
    hashed = []

    def counting_digest(part: bytes, seed: int) -> bytes:
        hashed.append(len(part))
        return CHECKSUM.digest(part, seed)

    records, end = journal_format.read_records(bytes(data), CHECKSUM._replace(digest=counting_digest))
    assert (records, end) == ([state[4:-8], SAFE], len(data))
    assert sum(hashed) < 2 * len(data)


@pytest.mark.parametrize("damaged", range(6))
def test_one_damaged_record_of_each_kind_costs_no_other(damaged: int) -> None:
    entries = [bytes((kind,)) + b"D" * place for place, kind in enumerate(ENTRY_KINDS)]
    records = [journal_format.pack_record(each, CHECKSUM) for each in entries]
    for place, record in enumerate(records):
        torn = bytearray(record)
        torn[damaged] ^= 0x40
        data = journal_format.pack_header(PLAIN_HASHING, 7, 1) + b"".join(
            (*records[:place], torn, *records[place + 1 :])
        )
        found, _ = journal_format.read_records(data, CHECKSUM)
        assert found == entries[:place] + entries[place + 1 :]
