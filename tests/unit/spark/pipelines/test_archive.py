"""What an archive's checkpoint says of its batches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetlake.errors import OffsetError, SparkError
from jetlake.spark.pipelines.archive import finished_end, require_same_stream


class Files:
    """A checkpoint in memory."""

    def __init__(self, offsets: list[dict[str, Any]], commits: tuple[str, ...] = ()) -> None:
        self._offsets = [json.dumps({"v": 2, "streams": {"A": offset}}) for offset in offsets]
        self._commits = commits

    def files(self, relative: str) -> dict[str, int]:
        return {f"{relative}/{name}": 1 for name in self._commits}

    def read(self, relative: str) -> bytes | None:
        batch = int(relative.removeprefix("offsets/"))
        return f"v1\n{{}}\n{self._offsets[batch]}".encode() if 0 <= batch < len(self._offsets) else None


FIRST = {"created": "then", "next": 51, "batch": {"from": 1}}


@pytest.mark.parametrize(
    ("second", "same"),
    [
        ({"created": "then", "next": 60, "batch": {"from": 51}}, True),
        ({"created": "then", "next": 60, "batch": {"from": 55}}, True),
        ({"created": "then", "next": 51}, True),
        ({"created": "now", "next": 60, "batch": {"from": 55}}, False),
        ({"created": "then", "next": 60, "batch": {"from": 41}}, False),
        ({"created": "then", "next": 41}, False),
    ],
)
def test_a_batch_goes_on_behind_the_one_before_in_the_same_stream(second, same):
    files = Files([FIRST, second])
    require_same_stream(files, 0, "A")
    if same:
        require_same_stream(files, 1, "A")
    else:
        with pytest.raises(SparkError, match="restored from an older state"):
            require_same_stream(files, 1, "A")


def test_the_end_is_that_of_the_last_finished_batch():
    later = {"created": "then", "next": 99, "batch": {"from": 51}}
    assert finished_end(Files([FIRST, later]), "A") is None
    assert finished_end(Files([FIRST, later], ("0", ".0.crc")), "A") == 51
    assert finished_end(Files([FIRST, later], ("0", "1")), "A") == 99
    broken = Files([FIRST], ("0",))
    broken._offsets[0] = "{"
    with pytest.raises(OffsetError, match="offset log is broken"):
        finished_end(broken, "A")
