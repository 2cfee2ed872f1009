"""The file of the history: what was saved comes back, what can't be read or written harms nobody."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from jetlake.dashboard.watching.collector import HistoryFile

KEPT = {"S": {"created": "now", "series": {"messages": {"1h": (3, b"means", b"highs")}}}}


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "folder" / "history")
    assert file.load() == {}
    file.save(KEPT)
    assert file.load() == KEPT
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["history"]


@pytest.mark.parametrize(
    "content", [b"", b"garbage", msgspec.msgpack.encode({"version": 2, "kept": {}}), msgspec.msgpack.encode([1])]
)
def test_a_file_that_cannot_be_read_is_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "history"
    path.write_bytes(content)
    file = HistoryFile(path)
    assert file.load() == {}
    file.save(KEPT)
    assert file.load() == KEPT


def test_a_place_that_cannot_be_written_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")
    HistoryFile(tmp_path / "taken" / "history").save(KEPT)
    (tmp_path / "folder").mkdir()
    HistoryFile(tmp_path / "folder").save(KEPT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "taken"]
