"""The group `jetlake stream`."""

from __future__ import annotations

import click

from jetlake.cli.commands.stream import backup, listing, manage, messages
from jetlake.cli.shared_options import SharedGroup

__all__ = ["stream"]


@click.group(cls=SharedGroup)
def stream() -> None:
    """Create, list, inspect, edit, purge and delete streams."""


for _command in (
    manage.add,
    manage.copy,
    manage.edit,
    manage.seal,
    manage.remove,
    manage.purge,
    listing.list_streams,
    listing.find,
    listing.report,
    listing.show,
    listing.subjects,
    messages.get,
    messages.view,
    messages.remove_message,
    backup.backup,
    backup.restore,
):
    stream.add_command(_command)
