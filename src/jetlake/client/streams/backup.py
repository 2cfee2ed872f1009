"""Backups: an archive from the server into a folder or a file, and from there into a new stream.

The folder has the layout of the `nats` command: the archive as it was sent, and `backup.json` with configuration and
state.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from jetlake import platform
from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.connection.inboxes import Answers
from jetlake.errors import (
    ApiError,
    BackupError,
    DecodeError,
    InvalidOptionError,
    NoRespondersError,
    RequestTimeoutError,
)
from jetlake.model.api import decode_reply
from jetlake.model.encoding.codec import decode, encode
from jetlake.model.replies import StreamCreateReply, StreamRestoreReply, StreamSnapshotReply
from jetlake.model.requests import StreamRestoreRequest, StreamSnapshotRequest
from jetlake.model.stream import StreamConfig, StreamInfo, StreamState
from jetlake.protocol import encoder

Progress = Callable[[int, int], object]
"""Called with the bytes transferred so far, and how many there are. For a backup that number is the size of the
stream, of which an archive takes less."""

BackupTarget = str | os.PathLike[str] | BinaryIO
"""A folder for archive and configuration, or a file that is open for writing, for the archive alone."""

BackupSource = str | os.PathLike[str] | BinaryIO
"""A folder with a backup, or a file that is open for reading, with the archive alone."""

_ARCHIVES = ("stream.tar.s2", "stream.arc.s2")  # the first is written
_META = "backup.json"
_CHUNK_BYTES = 256 * 1024
_UNACKNOWLEDGED_MAX = 4
# A server that stores a whole stream, or ends a slow one, may need longer than an ordinary answer.
_SLOW_ANSWER_S = 60.0


class Backup(msgspec.Struct, frozen=True):
    """A backup that was taken."""

    config: StreamConfig
    """The stream's configuration."""
    state: StreamState
    """What the stream held."""
    size: int
    """Bytes of the archive."""


async def take_backup(
    api: ApiCaller,
    stream: str,
    target: BackupTarget,
    *,
    consumers: bool,
    chunk_bytes: int,
    window_bytes: int,
    progress: Progress | None,
) -> Backup:
    """Take a backup; see `Stream.backup`."""
    wanted = StreamSnapshotRequest(
        no_consumers=not consumers, chunk_size=chunk_bytes or _CHUNK_BYTES, window_size=window_bytes
    )
    if not isinstance(target, (str, os.PathLike)):
        return await _receive(api, stream, target, wanted, progress)
    folder = Path(target)
    unfinished = folder / f"{_ARCHIVES[0]}.tmp"
    file = await asyncio.to_thread(_create, folder, unfinished)
    try:
        try:
            backup = await _receive(api, stream, file, wanted, progress)
        finally:
            await asyncio.to_thread(_close, file)
        await asyncio.to_thread(_finish, folder, unfinished, backup)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return backup


def _create(folder: Path, unfinished: Path) -> BinaryIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any((folder / name).exists() for name in (_META, *_ARCHIVES)):
            raise InvalidOptionError(f"{folder} holds a backup already")
        return unfinished.open("wb")
    except OSError as error:
        raise BackupError(f"{folder}: {error.strerror}") from error


def _close(file: BinaryIO) -> None:
    try:
        file.flush()
        platform.sync_data(file.fileno())
    finally:
        file.close()


def _finish(folder: Path, unfinished: Path, backup: Backup) -> None:
    """Give the archive its name; a folder with `backup.json` holds a whole backup."""
    unfinished.replace(folder / _ARCHIVES[0])
    platform.sync_directory(folder)  # The archive has its name before the file that calls it whole.
    meta = encode(StreamRestoreRequest(config=backup.config, state=backup.state))
    with (folder / f"{_META}.tmp").open("wb") as file:
        file.write(msgspec.json.format(meta, indent=2))
        file.flush()
        platform.sync_data(file.fileno())
    (folder / f"{_META}.tmp").replace(folder / _META)
    platform.sync_directory(folder)


async def _receive(
    api: ApiCaller, stream: str, file: BinaryIO, wanted: StreamSnapshotRequest, progress: Progress | None
) -> Backup:
    connection = api.connection
    with Answers(connection, "backup") as chunks:
        request = msgspec.structs.replace(wanted, deliver_subject=chunks.subject.decode())
        reply = await api.call(StreamSnapshotReply, "STREAM.SNAPSHOT", stream, body=request)
        size = 0
        while True:
            message = await chunks.next(max(api.timeout_s, _SLOW_ANSWER_S), chunks.subject.decode())
            if not message.payload:
                if message.status not in (None, 204):
                    raise BackupError(f"stream {stream}: the server ended the backup: {message.headers.description}")
                return Backup(reply.config, reply.state, size)
            await asyncio.to_thread(_write, file, bytes(message.payload))
            size += len(message.payload)
            if message.reply:
                connection.send(encoder.pub(message.reply.encode(), b"", b""))
                connection.end_turn()
            if progress is not None:
                progress(size, reply.state.bytes)


def _write(file: BinaryIO, data: bytes) -> None:
    try:
        file.write(data)
    except OSError as error:
        raise BackupError(f"the archive can't be written: {error.strerror}") from error


def open_backup(source: BackupSource) -> tuple[BinaryIO, StreamRestoreRequest | None]:
    """Open a backup's archive, and read its configuration and state if they are in a folder.

    Raises:
        BackupError: the folder holds no backup.
    """
    if not isinstance(source, (str, os.PathLike)):
        return source, None
    folder = Path(source)
    try:
        meta = decode(StreamRestoreRequest, (folder / _META).read_bytes())
        archive = next((path for name in _ARCHIVES if (path := folder / name).exists()), folder / _ARCHIVES[0])
        return archive.open("rb"), meta
    except OSError as error:
        raise BackupError(f"{folder} holds no backup: {error.filename}: {error.strerror}") from error
    except DecodeError as error:
        raise BackupError(f"{folder / _META} can't be read: {error}") from error


def count_missing(folder: str | os.PathLike[str], restored: StreamInfo) -> int:
    """Return how many messages the file beside an archive counts that the restored stream does not hold.

    Servers restore a backup that lacks messages: they may have been removed while it was made, or by limits since.
    """
    counted = decode(StreamRestoreRequest, (Path(folder) / _META).read_bytes()).state.messages
    return max(counted - restored.state.messages, 0)


async def restore(
    api: ApiCaller, archive: BinaryIO, config: StreamConfig, state: StreamState, progress: Progress | None
) -> StreamInfo:
    """Send an archive; see `JetStream.restore`.

    Raises:
        ApiError: the server refuses the configuration or the archive.
        BackupError: the server gave up.
    """
    request = StreamRestoreRequest(config=config, state=state)
    reply = await api.call(StreamRestoreReply, "STREAM.RESTORE", config.name, body=request)
    subject = reply.deliver_subject.encode()
    total = await asyncio.to_thread(bytes_left, archive)
    chunk_bytes = min(_CHUNK_BYTES, api.connection.info.max_payload)
    wait_s = max(api.timeout_s, _SLOW_ANSWER_S)
    sent = 0
    waiting: deque[Awaitable[object]] = deque()
    try:
        while chunk := await asyncio.to_thread(archive.read, chunk_bytes):
            waiting.append(asyncio.ensure_future(api.connection.request_raw(subject, b"", chunk, wait_s)))
            if len(waiting) >= _UNACKNOWLEDGED_MAX:
                await waiting.popleft()
            sent += len(chunk)
            if progress is not None:
                progress(sent, total)
        await asyncio.gather(*waiting)
        answer = await api.connection.request_raw(subject, b"", b"", wait_s)
    except (NoRespondersError, RequestTimeoutError) as error:
        raise BackupError(f"stream {config.name}: the server aborted the restore after {sent} bytes") from error
    finally:
        for request_under_way in waiting:
            asyncio.ensure_future(request_under_way).cancel()
    try:
        return decode_reply(StreamCreateReply, answer.payload)
    except ApiError as error:
        error.request = f"STREAM.RESTORE.{config.name}"
        raise


def bytes_left(file: BinaryIO) -> int:
    """Return the number of bytes left to read; 0 if the file does not report it."""
    try:
        here = file.tell()
        size = file.seek(0, os.SEEK_END) - here
        file.seek(here)
        return size
    except (AttributeError, OSError, ValueError):
        return 0
