"""Restoring a stream from the tar file of a backup: uploaded in pieces, looked into, shown, restored when confirmed."""

from __future__ import annotations

import asyncio
import shutil
import tarfile
import tempfile
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jetlake.client.streams.backup import open_backup
from jetlake.dashboard.changes import Done, Prepared, jetlake
from jetlake.dashboard.viewers import Viewers, changing_session
from jetlake.dashboard.watching.server_api import ServerApi, checked_name
from jetlake.dashboard.web import BODY_BYTES_MAX, json_answer, json_body
from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.codec import encode_shown
from jetlake.model.requests import StreamRestoreRequest

__all__ = ["UPLOAD_BYTES_MAX", "prepare_restore", "restore_routes"]

UPLOAD_BYTES_MAX = 1024 * 1024 * 1024
"""The largest backup that is restored here; the command takes any size."""
_FILES = ("backup.json", "stream.tar.s2", "stream.arc.s2")
"""What a backup consists of. Nothing else is unpacked, and no path of the archive is used."""


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    upload: str
    name: str = ""
    subjects: list[str] = []


def restore_routes(viewers: Viewers) -> list[Route]:
    """Make the routes: one takes pieces of a file, the other shows what restoring it does."""

    async def upload(request: Request) -> Response:
        session = await changing_session(viewers, request)
        if request.headers.get("content-type") != "application/octet-stream":
            raise InvalidOptionError("a piece of a file must be application/octet-stream")
        piece = bytearray()
        async for part in request.stream():
            piece += part
            if len(piece) > BODY_BYTES_MAX:
                raise InvalidOptionError(f"a piece must not be larger than {BODY_BYTES_MAX:,} bytes")
        file_id = request.query_params.get("upload", "")
        if not file_id:
            folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="jetlake-restore-"))
            file_id = await session.keep_file(folder / "backup.tar")
        await asyncio.to_thread(_append, _uploaded(session.files, file_id), bytes(piece))
        return json_answer({"upload": file_id})

    async def prepare(request: Request) -> Response:
        session = await changing_session(viewers, request)
        wanted = await json_body(request, _Wanted)
        file = _uploaded(session.files, wanted.upload)
        prepared = await prepare_restore(session.api, file, wanted.name, wanted.subjects)
        return json_answer(prepared.shown(session.keep(prepared, len(encode_shown(wanted)))))

    return [
        Route("/api/uploads", upload, methods=["POST"]),
        Route("/api/restores", prepare, methods=["POST"]),
    ]


def _uploaded(files: dict[str, Path], file_id: str) -> Path:
    file = files.get(file_id)
    if file is None:
        raise InvalidOptionError("this upload was replaced by another one; choose the file again")
    return file


def _append(file: Path, piece: bytes) -> None:
    if file.exists() and file.stat().st_size + len(piece) > UPLOAD_BYTES_MAX:
        raise InvalidOptionError(
            f"larger than {UPLOAD_BYTES_MAX:,} bytes; restore it with: jetlake stream restore DIRECTORY"
        )
    try:
        with file.open("ab") as opened:
            opened.write(piece)
    except OSError as error:
        raise InvalidOptionError(f"the upload can't be stored: {error.strerror}") from None


async def prepare_restore(api: ServerApi, file: Path, name: str, subjects: list[str]) -> Prepared:
    """Return what restoring a tar file does.

    Args:
        name: of the new stream; empty = that in the backup.
        subjects: of the new stream; none = those in the backup.

    Raises:
        InvalidOptionError: no backup is in the file, or a stream of that name exists.
    """
    folder, meta = await asyncio.to_thread(_unpack, file)
    wanted = checked_name(name or meta.config.name)
    if wanted in await api.jetstream.stream_names():
        raise InvalidOptionError(f"stream {wanted} exists already; give the restored stream another name and subjects")

    async def run() -> Done:
        options = {"name": wanted, **({"subjects": subjects} if subjects else {})}
        try:
            stream = await api.jetstream.restore(folder, **options)  # type: ignore[arg-type]  # two of its options
        finally:
            await asyncio.to_thread(shutil.rmtree, file.parent, ignore_errors=True)
        number = stream.cached_info.state.messages
        return Done(f"Restored stream {wanted} with {number:,} message{'' if number == 1 else 's'}.")

    words = [*(["--name", wanted] if name else []), *(word for one in subjects for word in ("--subjects", one))]
    return Prepared(
        f"Restore stream {wanted}",
        jetlake("stream", "restore", f"./{meta.config.name}", *words),
        run,
        [
            ("stream", "", wanted),
            ("subjects", "", ", ".join(subjects or meta.config.subjects)),
            ("messages", "", f"{meta.state.messages:,}"),
            ("consumers", "", f"{meta.state.consumer_count:,}"),
        ],
        file="The command takes the directory that is in the tar file.",
    )


def _unpack(file: Path) -> tuple[Path, StreamRestoreRequest]:
    """Return the folder of the backup in a tar file, and what it says about the stream."""
    folder = file.parent / "backup"
    folder.mkdir(exist_ok=True)
    try:
        with tarfile.open(file, "r:") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                content = archive.extractfile(member) if member.isreg() and name in _FILES else None
                if content is not None:
                    with (folder / name).open("wb") as unpacked:
                        shutil.copyfileobj(content, unpacked)
        opened, meta = open_backup(folder)
    except (tarfile.TarError, OSError) as error:
        raise InvalidOptionError(f"this file is not the tar file of a backup: {error}") from None
    opened.close()
    assert meta is not None  # a folder says it
    return folder, meta
