"""What an edit changes in a configuration, as people and as JSON read it."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec
from msgspec import Struct

from jetlake.cli import output
from jetlake.cli.session import confirm
from jetlake.model.config_text import config_text

__all__ = ["config_changes", "may_apply"]


def config_changes(old: Struct, new: Struct) -> dict[str, tuple[Any, Any]]:
    """List the fields that differ, with both values."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    keys = [*before, *(key for key in after if key not in before)]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def _print(changes: dict[str, tuple[Any, Any]], as_json: bool) -> None:
    """Print the changes, or that there are none."""
    if as_json:
        output.print_json({key: {"from": old, "to": new} for key, (old, new) in changes.items()})
    else:
        click.echo(_describe(changes) or "No changes")


def _describe(changes: dict[str, tuple[Any, Any]]) -> str:
    """Write the changes for people, one a line."""
    return "\n".join(
        f"{key}: {config_text(key, old)} -> {config_text(key, new)}" for key, (old, new) in changes.items()
    )


def may_apply(changes: dict[str, tuple[Any, Any]], owner: str, *, dry_run: bool, force: bool, as_json: bool) -> bool:
    """Return whether the changes are applied: a dry run prints them, a terminal shows them and asks.

    Args:
        owner: the stream or the consumer that changes, in the question.
    """
    if dry_run:
        _print(changes, as_json)
        return False
    if sys.stdin.isatty() and not force:
        click.echo(_describe(changes) or "No changes", err=True)
        confirm(f"Apply these changes to {owner}?", force)
    return True
