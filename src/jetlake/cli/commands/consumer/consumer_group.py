"""The group `jetlake consumer`."""

from __future__ import annotations

import click

from jetlake.cli.commands.consumer import control, listing, manage, reading
from jetlake.cli.shared_options import SharedGroup

__all__ = ["consumer"]


@click.group(cls=SharedGroup)
def consumer() -> None:
    """Create, list, inspect, edit, read from and delete consumers."""


for _command in (
    manage.add,
    manage.copy,
    manage.edit,
    manage.remove,
    listing.list_consumers,
    listing.show,
    listing.report,
    listing.why,
    reading.next_message,
    reading.subscribe,
    control.pause,
    control.resume,
    control.reset,
    control.unpin,
):
    consumer.add_command(_command)
