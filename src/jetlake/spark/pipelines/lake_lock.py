"""Who may write a folder: a lock, so that two pipelines never write at once, and claims, which name the owner for ever.

A pipeline in the folder of another one would replace its files, because both number their batches; one that continued
from the checkpoint of another would skip the messages that the other has read.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from jetlake import platform
from jetlake.client.tables.archived import NOTES
from jetlake.errors import ConfigError, SparkError
from jetlake.protocol.nuid import next_nuid
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.folder_sink import OWNER

LOCK = f"{NOTES}/lock.json"
"""Where a folder says who is writing into it."""
BEAT = f"{NOTES}/beat.json"
"""When its writer was last heard of. It lies beside the lock, which is written once: a writer that is killed while it
overwrites a file leaves half of it, and half a lock does not say whose it was."""
_BEAT_S = 10.0
# So long a writer may be silent, on a machine that can't be asked, before its lock counts for nothing.
_SILENT_S = 60.0


@dataclass(frozen=True)
class Writer:
    """A process that writes into a folder.

    Attributes:
        processes: names the set of processes in which `pid` means something: the host, its boot, its pid namespace.
        started: when the process was started, as the system counts it; two processes with one pid differ in it.
        token: names this lock.
    """

    host: str
    pid: int
    user: str
    pipeline: str
    since: str
    processes: str
    started: str
    token: str

    def __str__(self) -> str:
        return f"{self.pipeline} (process {self.pid} of {self.user} on {self.host}, since {self.since})"


def this_writer(pipeline: str) -> Writer:
    """Describe this process as a writer."""
    host = socket.gethostname()
    return Writer(
        host=host,
        pid=os.getpid(),
        user=platform.user_name(),
        pipeline=pipeline,
        since=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        processes=platform.processes_name(host),
        started=platform.process_start(os.getpid()),
        token=next_nuid(),
    )


def is_alive(
    found: Mapping[str, Any], me: Writer, now_s: float, start_of: Callable[[int], str] = platform.process_start
) -> bool:
    """Return whether the writer of a lock may still write: its process lives, or it was heard of lately."""
    if me.started and found.get("processes") == me.processes:
        return start_of(int(found.get("pid", 0))) == found.get("started")
    return now_s - float(found.get("seen", 0.0)) < _SILENT_S


class LakeLock:
    """The lock of one folder, once it is taken.

    Raises:
        ConfigError: another writer has the folder; names it.
    """

    def __init__(self, files: FileSystem, me: Writer, now_s: Callable[[], float] = time.time) -> None:
        self._files = files
        self._me = me
        self._now_s = now_s
        self._take()

    def _note(self) -> dict[str, Any]:
        return {**asdict(self._me), "seen": self._now_s()}

    def _take(self) -> None:
        found: Mapping[str, Any] = {}
        for _ in range(3):
            if self._files.create_json(LOCK, self._note()) and self._holder().get("token") == self._me.token:
                return
            found = self._holder()
            if found and is_alive(found, self._me, self._now_s()):
                break
            self._delete()
        known = "token" in found
        who = (
            Writer(**{key: found.get(key, "") for key in asdict(self._me)})
            if known
            else "a process that has just started"
        )
        raise ConfigError(
            f"{self._files.root} is being written by {who}, and two writers would corrupt it. Wait until it ends, "
            f"or choose another folder; if its process was killed, its lock expires in {_SILENT_S:.0f} seconds"
        )

    def _holder(self) -> Mapping[str, Any]:
        """Return what the lock says; of one that is not whole, when it was written; nothing when there is none."""
        try:
            found = self._files.read_json(LOCK)
        except SparkError:
            return {"seen": self._files.modified_s(LOCK)}
        if not isinstance(found, dict):
            return {}
        return {**found, "seen": max(float(found.get("seen", 0.0)), self._heard_of(found.get("token")))}

    def _heard_of(self, token: object) -> float:
        """Return when the writer of this lock was last heard of; 0.0 when only its lock tells."""
        try:
            beat = self._files.read_json(BEAT)
        except SparkError:
            return self._files.modified_s(BEAT)
        return float(beat["seen"]) if isinstance(beat, dict) and beat.get("token") == token else 0.0

    def _delete(self) -> None:
        self._files.delete(BEAT)
        self._files.delete(LOCK)

    def require(self) -> None:
        """Check that no other writer has taken the lock over while this process was held up.

        Raises:
            SparkError: another writer has.
        """
        token = self._holder().get("token")
        if token not in (self._me.token, None):
            raise SparkError(f"{self._files.root} was taken over by another writer while this one was stalled")

    def beat(self) -> None:
        """Show that this process lives."""
        if self._holder().get("token") == self._me.token:
            self._files.overwrite_json(BEAT, {"token": self._me.token, "seen": self._now_s()})

    def release(self) -> None:
        """Let others write."""
        if self._holder().get("token") == self._me.token:
            self._delete()


@contextmanager
def locked(files: FileSystem, pipeline: str) -> Iterator[LakeLock]:
    """Hold the folder's lock for as long as the block runs.

    Raises:
        ConfigError: another writer has the folder; names it.
    """
    lock = LakeLock(files, this_writer(pipeline))
    done = threading.Event()

    def beat() -> None:
        while not done.wait(_BEAT_S):
            # A disk may be full, a file system away: the batch that needs it says so.
            with suppress(Py4JError):
                lock.beat()

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    try:
        yield lock
    finally:
        done.set()
        beating.join()
        lock.release()


_CHECKPOINT_OWNER = "owner.json"


def claim_folder(files: FileSystem, owner: str) -> str:
    """Return the folder's own id, after making sure that the folder is empty or was begun by this owner.

    Args:
        owner: the pipeline and its sink, for people to read.

    Raises:
        ConfigError: the folder holds files of another program, or lies in the folder of another pipeline, whose readers
            would find these files as well.
    """
    _require_outside(files)
    found = files.read_json(OWNER)
    if found is None:
        if any(not path.startswith((OWNER, LOCK)) for path in files.files()):
            raise ConfigError(f"folder {files.root} contains other files: a pipeline needs an empty folder")
        found = {"owner": owner, "id": next_nuid()}
        files.write_json(OWNER, found)
    if found["owner"] != owner:
        raise ConfigError(
            f"folder {files.root} is written by {found['owner']}, not by {owner}: use that one, or choose another "
            "folder"
        )
    return str(found["id"])


def _require_outside(files: FileSystem) -> None:
    for outer in files.parents():
        above = None
        # Credentials may be good for the folder alone.
        with suppress(Py4JJavaError):
            above = outer.read_json(OWNER)
        if above is not None:
            raise ConfigError(
                f"folder {files.root} lies inside {outer.root}, which is written by {above['owner']}: choose a folder "
                "beside it"
            )


def claim_checkpoint(checkpoint: FileSystem, owner: str) -> None:
    """Make sure that a checkpoint is new or was begun by this owner.

    Args:
        owner: the pipeline and what it writes to; a folder is named by its id, for it may be moved.

    Raises:
        ConfigError: the checkpoint is of another query, or no checkpoint at all.
    """
    found = checkpoint.read_json(_CHECKPOINT_OWNER)
    if found is None and not checkpoint.exists("metadata"):
        if any(not path.startswith(_CHECKPOINT_OWNER) for path in checkpoint.files()):
            raise ConfigError(f"folder {checkpoint.root} contains other files: a checkpoint needs an empty folder")
        found = {"owner": owner}
        checkpoint.write_json(_CHECKPOINT_OWNER, found)
    if found is None or found["owner"] != owner:
        whose = found["owner"] if found else "a query that is not a pipeline"
        raise ConfigError(
            f"checkpoint {checkpoint.root} belongs to {whose}, not to {owner}, which would skip messages that were "
            "read with it. Choose another one with --checkpoint"
        )


def remove_checkpoint(checkpoint: FileSystem) -> None:
    """Remove a checkpoint; the note that says whose it is goes last, so that who is cut off can do it again."""
    for path in checkpoint.files():
        if path != _CHECKPOINT_OWNER:
            checkpoint.delete(path)
    checkpoint.delete("")
