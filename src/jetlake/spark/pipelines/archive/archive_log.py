"""What an archive's checkpoint says of its batches: where each one ends, and which are finished."""

from __future__ import annotations

from jetlake.client.tables.plan.offsets import StreamOffset, logged_offset
from jetlake.errors import SparkError
from jetlake.spark.pipelines.lake.file_system import FileSystem

__all__ = ["finished_end", "require_same_stream"]


def finished_end(checkpoint: FileSystem, stream: str) -> int | None:
    """Return the sequence behind the last finished batch; None when no batch is finished."""
    names = [path.rpartition("/")[2] for path in checkpoint.files("commits")]
    batches = [int(name) for name in names if name.isdigit()]
    end = _end(checkpoint, max(batches), stream) if batches else None
    return end.next if end is not None else None


def require_same_stream(checkpoint: FileSystem, batch: int, stream: str) -> None:
    """Make sure that a batch goes on behind the one before, in the same stream.

    Raises:
        SparkError: the stream was made again or restored from an older state, so that sequences would be there twice.
    """
    before, end = _end(checkpoint, batch - 1, stream), _end(checkpoint, batch, stream)
    if before is None or end is None:
        return
    first, _ = end.range_after(before)
    if end.created != before.created or first < before.next:
        raise SparkError(
            f"stream {stream} was made again or restored from an older state since it was archived, and its sequences "
            "mean other messages: an archive goes on only with the stream that it holds; choose another folder"
        )


def _end(checkpoint: FileSystem, batch: int, stream: str) -> StreamOffset | None:
    content = checkpoint.read(f"offsets/{batch}")
    return logged_offset(content.decode()).of(stream) if content is not None else None
