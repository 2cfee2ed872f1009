"""Claims: notes in folders and checkpoints that say whose they are.

A pipeline that wrote into the folder of another one would replace its files, for both number their batches; one that
went on from the checkpoint of another would leave out what that one has read.
"""

from __future__ import annotations

from contextlib import suppress

from py4j.protocol import Py4JJavaError

from jetlake.errors import ConfigError
from jetlake.protocol.nuid import next_nuid
from jetlake.spark.pipelines.lake.file_system import FileSystem
from jetlake.spark.pipelines.lake.folder_sink import OWNER
from jetlake.spark.pipelines.lake.lake_lock import LOCK

__all__ = ["claim_checkpoint", "claim_folder", "remove_checkpoint"]

_CHECKPOINT_OWNER = "owner.json"


def claim_folder(files: FileSystem, owner: str) -> str:
    """Return the folder's own id, after making sure that the folder is empty or was begun by this owner.

    Args:
        owner: the pipeline and its sink, for people to read.

    Raises:
        ConfigError: the folder holds files of somebody else, or lies in the folder of another pipeline, whose readers
            would find these files as well.
    """
    _require_outside(files)
    found = files.read_json(OWNER)
    if found is None:
        if any(not path.startswith((OWNER, LOCK)) for path in files.files()):
            raise ConfigError(f"folder {files.root} holds other files: a pipeline begins in an empty folder")
        found = {"owner": owner, "id": next_nuid()}
        files.write_json(OWNER, found)
    if found["owner"] != owner:
        raise ConfigError(
            f"folder {files.root} is written by {found['owner']}, not by {owner}: go on with that, or choose another "
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
            raise ConfigError(f"folder {checkpoint.root} holds other files: a checkpoint begins in an empty folder")
        found = {"owner": owner}
        checkpoint.write_json(_CHECKPOINT_OWNER, found)
    if found is None or found["owner"] != owner:
        whose = f"of {found['owner']}" if found else "of a query that no pipeline has begun"
        raise ConfigError(
            f"checkpoint {checkpoint.root} is {whose}, not of {owner}: what that one has read would be left out. "
            "Choose another one with --checkpoint"
        )


def remove_checkpoint(checkpoint: FileSystem) -> None:
    """Remove a checkpoint; the note that says whose it is goes last, so that who is cut off can do it again."""
    for path in checkpoint.files():
        if path != _CHECKPOINT_OWNER:
            checkpoint.delete(path)
    checkpoint.delete("")
