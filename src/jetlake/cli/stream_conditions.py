"""The conditions of `jetlake stream find` and `stream cluster balance`, as options and as tests of a stream."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import click
import msgspec

from jetlake.cli.expressions import compile_expression
from jetlake.cli.values import DURATION
from jetlake.errors import ConfigError
from jetlake.model.encoding.times import parse_time
from jetlake.model.stream import StreamInfo

__all__ = ["condition_options", "conditions"]

_OPTIONS = (
    click.option("--empty", is_flag=True, default=None, help="Streams without messages."),
    click.option("--idle", type=DURATION, help="Streams without a new message for this long."),
    click.option("--created", type=DURATION, help="Streams created longer ago than this."),
    click.option("--consumers", type=click.IntRange(0), metavar="N", help="Streams with at most N consumers."),
    click.option("--replicas", type=click.IntRange(1), metavar="N", help="Streams with at most N replicas."),
    click.option("--sourced", is_flag=True, default=None, help="Streams that copy from sources."),
    click.option("--mirrored", is_flag=True, default=None, help="Streams that are mirrors."),
    click.option("--leader", metavar="SERVER", help="Streams that this server of a cluster leads."),
    click.option("--server-name", metavar="REGEX", help="Streams with a replica on a server whose name matches."),
    click.option("--cluster", metavar="REGEX", help="Streams in a cluster whose name matches."),
    click.option("--api-level", type=click.IntRange(0), metavar="N", help="Streams that need at least this API level."),
    click.option(
        "--expression", metavar="EXPRESSION", help="Streams for which this holds, such as: state.messages > 10"
    ),
)


def condition_options(function: Any) -> Any:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_LEVEL = "_nats.req.level"


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a regular expression: {error}") from None


def _servers(info: StreamInfo) -> list[str]:
    return [info.cluster.leader, *(peer.name for peer in info.cluster.replicas)] if info.cluster else []


def _holds(expression: str) -> Callable[[StreamInfo], bool]:
    holds = compile_expression(expression)

    def fits(info: StreamInfo) -> bool:
        fields = msgspec.to_builtins(info)
        return holds({"config": fields["config"], "state": fields["state"], "info": fields})

    return fits


def conditions(wanted: dict[str, Any]) -> list[Callable[[StreamInfo], bool]]:
    """Make one function for each option that was given."""
    wanted = {name: value for name, value in wanted.items() if value not in (None, "")}
    now_ns = time.time_ns()

    def idle(info: StreamInfo) -> bool:
        # A stream that never had a message is idle since it was made.
        last = info.state.last_ts
        return bool(now_ns - parse_time(info.created if last.startswith("0001-") else last) >= wanted["idle"])

    tests: dict[str, Callable[[StreamInfo], bool]] = {
        "empty": lambda info: not info.state.messages,
        "idle": idle,
        "created": lambda info: now_ns - parse_time(info.created) >= wanted["created"],
        "consumers": lambda info: info.state.consumer_count <= wanted["consumers"],
        "replicas": lambda info: info.config.num_replicas <= wanted["replicas"],
        "sourced": lambda info: bool(info.config.sources),
        "mirrored": lambda info: info.config.mirror is not None,
        "leader": lambda info: info.cluster is not None and info.cluster.leader == wanted["leader"],
        "server_name": lambda info: any(_matches(wanted["server_name"], name) for name in _servers(info)),
        "cluster": lambda info: info.cluster is not None and _matches(wanted["cluster"], info.cluster.name),
        "api_level": lambda info: int(info.config.metadata.get(_LEVEL, "0")) >= wanted["api_level"],
        "expression": _holds(wanted["expression"]) if "expression" in wanted else lambda info: True,
    }
    return [test for name, test in tests.items() if name in wanted]
