"""Changes of streams: create, edit, purge, delete, seal, back up."""

from __future__ import annotations

import asyncio
import shutil
import tarfile
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from jetlake.client.api.config_options import configured, merged
from jetlake.client.streams.stream import Stream
from jetlake.dashboard.changes import Done, Prepared, arguments, differences, jetlake, or_file, stream_options
from jetlake.dashboard.watching.server_api import ServerApi, checked_name
from jetlake.errors import InvalidOptionError
from jetlake.model.stream import StreamConfig


class _Create(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    options: dict[str, Any]


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    stream: str


class _Purge(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    subject: str = ""
    before: int = 0
    keep: int = 0


async def _create(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Create, given)
    name = checked_name(wanted.stream)
    config = configured(StreamConfig, {**wanted.options, "name": name})

    async def run() -> Done:
        await api.jetstream.create_stream(config)
        return Done(f"Created stream {name}.")

    words, file = or_file(stream_options(wanted.options), "stream.json", config)
    return Prepared(
        f"Create stream {name}",
        jetlake("stream", "add", name, *words, "--defaults"),
        run,
        differences(StreamConfig(name=name), config),
        file=file,
    )


async def _edit(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Create, given)
    stream = await api.jetstream.stream(checked_name(wanted.stream))
    before = stream.config
    after = merged(before, wanted.options)
    changes = differences(before, after)
    if not changes:
        raise InvalidOptionError(f"{stream.name} has this configuration already")

    async def run() -> Done:
        if (await stream.info()).config != before:
            raise InvalidOptionError(f"{stream.name} was changed in the meantime; reload and try again")
        await stream.update(after)
        return Done(f"Updated stream {stream.name}.")

    changed = {name: value for name, value in wanted.options.items() if getattr(before, name) != getattr(after, name)}
    words, file = or_file(stream_options(changed), "stream.json", after)
    return Prepared(
        f"Edit stream {stream.name}", jetlake("stream", "edit", stream.name, *words, "--force"), run, changes, file=file
    )


async def _purge(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Purge, given)
    if wanted.before and wanted.keep:
        raise InvalidOptionError("use either a sequence or a number of messages to keep")
    stream = await api.jetstream.stream(checked_name(wanted.stream))

    async def run() -> Done:
        number = await stream.purge(subject=wanted.subject, before=wanted.before, keep=wanted.keep)
        return Done(f"Purged {number:,} message{'' if number == 1 else 's'} from {stream.name}.")

    words = [
        word
        for flag, value in (("--subject", wanted.subject), ("--seq", wanted.before), ("--keep", wanted.keep))
        if value
        for word in (flag, str(value))
    ]
    which = " ".join(words) or "all"
    state = stream.cached_info.state
    return Prepared(
        f"Purge stream {stream.name}",
        jetlake("stream", "purge", stream.name, *words, "--force"),
        run,
        [("messages", f"{state.messages:,}", "0" if which == "all" else f"purged by {which}")],
        "Purged messages can't be recovered.",
    )


async def _delete(api: ServerApi, given: dict[str, Any]) -> Prepared:
    stream = await api.jetstream.stream(checked_name(arguments(_Named, given).stream))
    state = stream.cached_info.state

    async def run() -> Done:
        await stream.delete()
        return Done(f"Deleted stream {stream.name}.")

    return Prepared(
        f"Delete stream {stream.name}",
        jetlake("stream", "rm", stream.name, "--force"),
        run,
        [("messages", f"{state.messages:,}", "0"), ("consumers", f"{state.consumer_count:,}", "0")],
        "The stream, its messages and its consumers can't be recovered.",
    )


async def _seal(api: ServerApi, given: dict[str, Any]) -> Prepared:
    stream = await api.jetstream.stream(checked_name(arguments(_Named, given).stream))

    async def run() -> Done:
        await stream.update(sealed=True)
        return Done(f"Sealed stream {stream.name}.")

    return Prepared(
        f"Seal stream {stream.name}",
        jetlake("stream", "seal", stream.name, "--force"),
        run,
        [("sealed", "false", "true")],
        "A sealed stream accepts no changes, and can't be unsealed.",
    )


async def _back_up(api: ServerApi, given: dict[str, Any]) -> Prepared:
    stream = await api.jetstream.stream(checked_name(arguments(_Named, given).stream))
    state = stream.cached_info.state

    async def run() -> Done:
        folder = Path(tempfile.mkdtemp(prefix="jetlake-backup-"))
        try:
            return Done(f"Backed up stream {stream.name}.", await _archive(stream, folder))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    return Prepared(
        f"Back up stream {stream.name}",
        jetlake("stream", "backup", stream.name, f"./{stream.name}"),
        run,
        [("messages", f"{state.messages:,}", f"{state.messages:,}")],
        file="A tar file with the directory that `jetlake stream restore` and `nats stream restore` read.",
    )


async def _archive(stream: Stream, folder: Path) -> Path:
    """Return a tar file with the folder of a backup."""
    await stream.backup(folder / "backup")
    file = folder / f"{stream.name}.tar"

    def pack() -> None:
        with tarfile.open(file, "w") as archive:
            archive.add(folder / "backup", arcname=stream.name)
        shutil.rmtree(folder / "backup")

    await asyncio.to_thread(partial(pack))
    return file


STREAM_CHANGES = {
    "stream.create": _create,
    "stream.edit": _edit,
    "stream.purge": _purge,
    "stream.delete": _delete,
    "stream.seal": _seal,
    "stream.backup": _back_up,
}
