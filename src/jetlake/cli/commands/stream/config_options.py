"""The options of a stream's configuration, which `stream add`, `edit` and `copy` take."""

from __future__ import annotations

from typing import Any

import click

from jetlake.cli.values import DURATION, PAIR, SIZE

__all__ = ["config_options", "given_fields"]

_OPTIONS = (
    click.option("--subjects", multiple=True, metavar="LIST", help="Subjects to capture, separated by commas."),
    click.option("--storage", type=click.Choice(["file", "memory", "f", "m"]), help="Where to store messages."),
    click.option(
        "--retention",
        type=click.Choice(["limits", "interest", "work", "workqueue"]),
        help="Retention policy: remove messages by limits, when all consumers acked, or when one did.",
    ),
    click.option(
        "--discard",
        type=click.Choice(["old", "new"]),
        help="Whether a full stream drops old messages or refuses new ones.",
    ),
    click.option(
        "--discard-per-subject/--no-discard-per-subject",
        "discard_new_per_subject",
        default=None,
        help="Also refuse new messages at the limit per subject.",
    ),
    click.option("--max-msgs", type=int, metavar="N", help="Maximum messages; -1 for unlimited."),
    click.option("--max-msgs-per-subject", type=int, metavar="N", help="Maximum messages per subject."),
    click.option("--max-bytes", type=SIZE, help="Maximum size, like 1GB."),
    click.option("--max-age", type=DURATION, help="Maximum age of a message, like 7d."),
    click.option("--max-msg-size", type=SIZE, help="Maximum size of a message."),
    click.option("--max-consumers", type=int, metavar="N", help="Maximum consumers."),
    click.option("--dupe-window", "duplicate_window", type=DURATION, help="How long message ids are remembered."),
    click.option("--replicas", "num_replicas", type=int, metavar="N", help="Replicas in a cluster."),
    click.option("--ack/--no-ack", "ack", default=None, help="Acknowledge publishes."),
    click.option("--allow-direct/--no-allow-direct", "allow_direct", default=None, help="Answer direct gets."),
    click.option("--allow-rollup/--no-allow-rollup", "allow_rollup_hdrs", default=None, help="Allow roll-ups."),
    click.option("--allow-msg-ttl", "allow_msg_ttl", is_flag=True, default=None, help="Allow TTLs per message."),
    click.option(
        "--allow-counter", "allow_msg_counter", is_flag=True, default=None, help="Make each subject a counter."
    ),
    click.option("--allow-batch", "allow_atomic", is_flag=True, default=None, help="Allow atomic batches."),
    click.option("--allow-fast-batch", "allow_batched", is_flag=True, default=None, help="Allow fast batches."),
    click.option("--allow-schedules", "allow_msg_schedules", is_flag=True, default=None, help="Allow schedules."),
    click.option("--deny-delete", is_flag=True, default=None, help="Refuse to delete messages, for good."),
    click.option("--deny-purge", is_flag=True, default=None, help="Refuse to purge, for good."),
    click.option("--compression", type=click.Choice(["none", "s2"]), help="Compression of stored blocks."),
    click.option("--first-sequence", "first_seq", type=int, metavar="N", help="Sequence of the first message."),
    click.option("--mirror", metavar="STREAM", help="Create a mirror of this stream."),
    click.option(
        "--source", "sources", multiple=True, metavar="STREAM", help="Copy from this source; may be repeated."
    ),
    click.option("--description", metavar="TEXT", help="Description."),
    click.option("--metadata", type=PAIR, multiple=True, help="Metadata; may be repeated."),
)
_SHORT = {"f": "file", "m": "memory", "work": "workqueue"}


def config_options(function: Any) -> Any:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def given_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration's fields from the options that were given."""
    fields = {name: value for name, value in options.items() if value not in (None, ())}
    if "subjects" in fields:
        fields["subjects"] = tuple(one.strip() for text in fields["subjects"] for one in text.split(",") if one.strip())
    for name in ("storage", "retention"):
        if name in fields:
            fields[name] = _SHORT.get(fields[name], fields[name])
    if "mirror" in fields:
        fields["mirror"] = {"name": fields["mirror"]}
    if "sources" in fields:
        fields["sources"] = tuple({"name": name} for name in fields["sources"])
    if "metadata" in fields:
        fields["metadata"] = dict(fields["metadata"])
    if "ack" in fields:
        fields["no_ack"] = not fields.pop("ack")
    return fields
