"""The questions of `jetlake stream add` on a terminal."""

from __future__ import annotations

from typing import Any

import click

from jetlake.cli.keyboard import ask
from jetlake.cli.values import DURATION, SIZE

__all__ = ["ask_name", "ask_stream", "ask_subjects"]


def ask_name() -> str:
    """Ask for the stream's name."""
    name: str = ask("Name of the stream")
    return name


def ask_subjects(name: str) -> tuple[str, ...]:
    """Ask for the subjects, as the option has them."""
    return (ask("Subjects to capture, separated by commas", default=name),)


def ask_stream(name: str) -> dict[str, Any]:
    """Ask for what matters of a new stream; the answers by the names of the options."""

    def answer(question: str, default: str, kind: Any) -> Any:
        return ask(question, default=default, type=kind)

    return {
        "subjects": ask_subjects(name),
        "storage": answer("Storage", "file", click.Choice(["file", "memory"])),
        "retention": answer("Retention", "limits", click.Choice(["limits", "interest", "workqueue"])),
        "max_msgs": answer("Most messages (-1 for no limit)", "-1", int),
        "max_msgs_per_subject": answer("Most messages of one subject (-1 for no limit)", "-1", int),
        "max_bytes": answer("Most bytes, like 1GB (-1 for no limit)", "-1", SIZE),
        "max_age": answer("Longest life of a message, like 7d (0 for no limit)", "0", DURATION),
        "max_msg_size": answer("Largest message, like 1MB (-1 for no limit)", "-1", SIZE),
        "discard": answer("What a full stream drops", "old", click.Choice(["old", "new"])),
        "duplicate_window": answer("How long message ids are remembered", "2m", DURATION),
        "num_replicas": answer("Copies in a cluster", "1", int),
    }
