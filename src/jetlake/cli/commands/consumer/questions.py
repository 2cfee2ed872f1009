"""The questions of `jetlake consumer add` on a terminal."""

from __future__ import annotations

from typing import Any

import click

from jetlake.cli.keyboard import ask
from jetlake.cli.values import DELIVER, DURATION, Start

__all__ = ["ask_consumer", "ask_stream"]


def ask_stream() -> str:
    """Ask for the stream's name."""
    name: str = ask("Name of the stream")
    return name


def ask_consumer(name: str | None) -> tuple[str | None, Start, dict[str, Any]]:
    """Ask for what matters of a new consumer.

    Returns:
        The name, None for an ephemeral consumer; where to begin; the other answers by the names of the options.
    """

    def answer(question: str, default: str, kind: Any = str) -> Any:
        return ask(question, default=default, type=kind, show_default=bool(default))

    name = name or answer("Name (empty for an ephemeral consumer)", "") or None
    answers: dict[str, Any] = {"deliver_subject": answer("Push to a subject (empty for a pull consumer)", "") or None}
    start = answer("Begin with: all, new, last, subject, a sequence, a time, or how long ago", "all", DELIVER)
    answers["ack"] = answer("Acknowledgements", "explicit", click.Choice(["explicit", "all", "none"]))
    answers["filters"] = tuple(one.strip() for one in answer("Only subjects, separated by commas", "").split(","))
    if answers["ack"] != "none":
        answers["ack_wait"] = answer("How long to wait for an ack", "30s", DURATION)
        answers["max_deliver"] = answer("Most deliveries of one message (-1 for no limit)", "-1", int)
        answers["max_ack_pending"] = answer("Most messages awaiting an ack", "1000", int)
    return name, start, answers
