"""The options of a consumer's configuration, which `consumer add` and `edit` take."""

from __future__ import annotations

from typing import Any

import click

from jetlake.cli.values import DURATION, PAIR, SAMPLE, SIZE
from jetlake.errors import ConfigError

__all__ = ["config_options", "given_fields"]

_OPTIONS = (
    click.option("--filter", "filters", multiple=True, metavar="SUBJECT", help="Take only these subjects."),
    click.option("--ack", type=click.Choice(["explicit", "all", "none"]), help="Which acks to wait for."),
    click.option("--wait", "ack_wait", type=DURATION, help="How long to wait for an ack before delivering again."),
    click.option("--backoff", metavar="LIST", help="Waits before each redelivery, like 1s,5s,1m."),
    click.option("--max-deliver", type=int, metavar="N", help="Most deliveries of one message; -1 unlimited."),
    click.option("--max-pending", "max_ack_pending", type=int, metavar="N", help="Most messages awaiting an ack."),
    click.option("--max-waiting", type=int, metavar="N", help="Most waiting pulls."),
    click.option("--max-pull-batch", "max_batch", type=int, metavar="N", help="Largest batch of a pull."),
    click.option("--max-pull-bytes", "max_bytes", type=SIZE, help="Most bytes of a pull."),
    click.option("--max-pull-expire", "max_expires", type=DURATION, help="Longest life of a pull."),
    click.option("--sample", "sample_freq", type=SAMPLE, help="Percentage of acks to publish as samples."),
    click.option("--replay", "replay_policy", type=click.Choice(["instant", "original"]), help="How fast to deliver."),
    click.option("--target", "deliver_subject", metavar="SUBJECT", help="Push to this subject."),
    click.option("--deliver-group", metavar="QUEUE", help="Queue group that shares the target."),
    click.option("--heartbeat", "idle_heartbeat", type=DURATION, help="Push: heartbeat after this much silence."),
    click.option("--flow-control", is_flag=True, default=None, help="Push: pause when the reader does not keep up."),
    click.option("--bps", "rate_limit_bps", type=int, metavar="N", help="Push: most bits per second."),
    click.option("--headers-only", is_flag=True, default=None, help="Leave payloads out."),
    click.option("--inactive-threshold", type=DURATION, help="Remove it after this long without use."),
    click.option("--replicas", "num_replicas", type=int, metavar="N", help="Copies in a cluster; 0 as the stream."),
    click.option("--memory", "mem_storage", is_flag=True, default=None, help="Keep its state in memory."),
    click.option("--description", metavar="TEXT", help="Free text."),
    click.option("--metadata", type=PAIR, multiple=True, help="Free data; may be repeated."),
    click.option("--overflow-groups", metavar="GROUP", help="Priority group with the overflow policy."),
    click.option("--pinned-groups", metavar="GROUP", help="Priority group with the pinned client policy."),
    click.option("--prioritized-groups", metavar="GROUP", help="Priority group with the prioritized policy."),
    click.option("--pinned-ttl", "priority_timeout", type=DURATION, help="How long a pinned client may be silent."),
)
_POLICIES = {
    "overflow_groups": "overflow",
    "pinned_groups": "pinned_client",
    "prioritized_groups": "prioritized",
}


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def config_options(function: Any) -> Any:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def given_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration's fields from the options that were given."""
    fields = {name: value for name, value in options.items() if value not in (None, ())}
    if "filters" in fields:
        # Both fields: whichever of them a consumer had is replaced, and an empty filter takes everything.
        filters = tuple(one for one in fields.pop("filters") if one)
        is_one = len(filters) == 1
        fields.update(filter_subject=filters[0] if is_one else "", filter_subjects=() if is_one else filters)
    if "ack" in fields:
        fields["ack_policy"] = fields.pop("ack")
    if "backoff" in fields:
        fields["backoff"] = [DURATION.convert(one.strip(), None, None) for one in fields["backoff"].split(",")]
    if "metadata" in fields:
        fields["metadata"] = dict(fields["metadata"])
    policies = [option for option in _POLICIES if option in fields]
    if len(policies) > 1:
        raise ConfigError(
            f"{' and '.join(map(_flag, policies))} exclude each other: a consumer has one priority policy"
        )
    for option in policies:
        fields.update(priority_groups=[fields.pop(option)], priority_policy=_POLICIES[option])
    return fields
