"""Claims: notes in folders and checkpoints that say whose they are.

A pipeline that wrote into the folder of another one would replace its files, for both number their batches; one that
went on from the checkpoint of another would leave out what that one has read.
"""

from __future__ import annotations

from jetlake.errors import ConfigError
from jetlake.protocol.nuid import next_nuid
from jetlake.spark.pipelines.lake.file_system import FileSystem
from jetlake.spark.pipelines.lake.folder_sink import NOTES
from jetlake.spark.pipelines.lake.lake_lock import LOCK

__all__ = ["claim_checkpoint", "claim_folder"]

_OWNER = f"{NOTES}/owner.json"
_CHECKPOINT_OWNER = "owner.json"


def claim_folder(files: FileSystem, owner: str) -> str:
    """Return the folder's own id, after making sure that the folder is empty or was begun by this owner.

    Args:
        owner: the pipeline and its sink, for people to read.

    Raises:
        ConfigError: the folder holds files of somebody else.
    """
    found = files.read_json(_OWNER)
    if found is None:
        if any(not path.startswith((_OWNER, LOCK)) for path in files.files()):
            raise ConfigError(f"folder {files.root} holds other files: a pipeline begins in an empty folder")
        found = {"owner": owner, "id": next_nuid()}
        files.write_json(_OWNER, found)
    if found["owner"] != owner:
        raise ConfigError(
            f"folder {files.root} is written by {found['owner']}, not by {owner}: go on with that, or choose another "
            "folder"
        )
    return str(found["id"])


def claim_checkpoint(checkpoint: FileSystem, owner: str) -> None:
    """Make sure that a checkpoint is new or was begun by this owner.

    Args:
        owner: the pipeline and what it writes to; a folder is named by its id, for it may be moved.

    Raises:
        ConfigError: the checkpoint is of another query.
    """
    found = checkpoint.read_json(_CHECKPOINT_OWNER)
    if found is None and not checkpoint.exists("metadata"):
        found = {"owner": owner}
        checkpoint.write_json(_CHECKPOINT_OWNER, found)
    if found is None or found["owner"] != owner:
        whose = f"of {found['owner']}" if found else "of a query that no pipeline has begun"
        raise ConfigError(
            f"checkpoint {checkpoint.root} is {whose}, not of {owner}: what that one has read would be left out. "
            "Choose another one with --checkpoint"
        )
