"""The group `jetlake kv`."""

from __future__ import annotations

import click

from jetlake.cli.commands.kv import buckets, keys
from jetlake.cli.shared_options import SharedGroup

__all__ = ["kv"]


@click.group(cls=SharedGroup)
def kv() -> None:
    """Use key-value buckets."""


for _command in (
    buckets.add,
    buckets.edit,
    buckets.show,
    buckets.list_names,
    buckets.compact,
    keys.get,
    keys.put,
    keys.create,
    keys.update,
    keys.revert,
    keys.delete,
    keys.purge,
    keys.history,
    keys.watch,
):
    kv.add_command(_command)
