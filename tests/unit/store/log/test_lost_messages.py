"""Lost messages: which are told, and until when."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from jetlake.store.log.lost_messages import LostMessages
from jetlake.store.log.segment_list import SegmentList
from tests.support.faulty_disk import FaultyDisk


@pytest.mark.parametrize("seed", range(20))
def test_those_that_are_removed_are_lost_no_more(seed: int) -> None:
    random = Random(seed)
    lost = LostMessages(Path("/s"), SegmentList(FaultyDisk(random), Path("/s/segments")), lambda _text: None)
    expected = sorted(random.sample(range(1, 60), 30))
    lost.begin(expected, 100)
    for _ in range(10):
        first = random.randint(1, 60)
        last = first + random.choice([0, 0, 3, 10])
        before = lost.sequences
        lost.forget(first, last)
        expected = [sequence for sequence in expected if not first <= sequence <= last]
        assert lost.sequences == expected
        assert lost.sequences is before or len(before) > len(expected), "who reads the list has it as it was"
