"""The options of a consumer's configuration, which `consumer add` and `edit` take."""

from __future__ import annotations

from typing import Any

import click

from jetlake.cli.values import DURATION, PAIR, SAMPLE, SIZE
from jetlake.errors import ConfigError

__all__ = ["config_options", "given_fields"]

_OPTIONS = (
    click.option("--filter", "filters", multiple=True, metavar="SUBJECT", help="Deliver only these subjects."),
    click.option("--ack", type=click.Choice(["explicit", "all", "none"]), help="Ack policy."),
    click.option("--wait", "ack_wait", type=DURATION, help="How long to wait for an ack before redelivery."),
    click.option("--backoff", metavar="LIST", help="Delays before each redelivery, like 1s,5s,1m."),
    click.option("--max-deliver", type=int, metavar="N", help="Maximum deliveries of one message; -1 for unlimited."),
    click.option("--max-pending", "max_ack_pending", type=int, metavar="N", help="Maximum messages awaiting an ack."),
    click.option("--max-waiting", type=int, metavar="N", help="Maximum waiting pull requests."),
    click.option("--max-pull-batch", "max_batch", type=int, metavar="N", help="Maximum batch of a pull request."),
    click.option("--max-pull-bytes", "max_bytes", type=SIZE, help="Maximum bytes of a pull request."),
    click.option("--max-pull-expire", "max_expires", type=DURATION, help="Maximum expiry of a pull request."),
    click.option("--sample", "sample_freq", type=SAMPLE, help="Percentage of acks to publish as samples."),
    click.option(
        "--replay",
        "replay_policy",
        type=click.Choice(["instant", "original"]),
        help="Delivery speed: at once, or at the original pace.",
    ),
    click.option("--target", "deliver_subject", metavar="SUBJECT", help="Push to this subject."),
    click.option("--deliver-group", metavar="QUEUE", help="Queue group that shares the target subject."),
    click.option(
        "--heartbeat", "idle_heartbeat", type=DURATION, help="Push: send a heartbeat after this much silence."
    ),
    click.option(
        "--flow-control", is_flag=True, default=None, help="Push: pause when the subscriber does not keep up."
    ),
    click.option("--bps", "rate_limit_bps", type=int, metavar="N", help="Push: rate limit in bits per second."),
    click.option("--headers-only", is_flag=True, default=None, help="Deliver headers without payloads."),
    click.option("--inactive-threshold", type=DURATION, help="Delete the consumer after this long without use."),
    click.option(
        "--replicas",
        "num_replicas",
        type=int,
        metavar="N",
        help="Replicas in a cluster; 0 for as many as the stream has.",
    ),
    click.option("--memory", "mem_storage", is_flag=True, default=None, help="Keep the consumer's state in memory."),
    click.option("--description", metavar="TEXT", help="Description."),
    click.option("--metadata", type=PAIR, multiple=True, help="Metadata; may be repeated."),
    click.option("--overflow-groups", metavar="GROUP", help="Priority group with the overflow policy."),
    click.option("--pinned-groups", metavar="GROUP", help="Priority group with the pinned client policy."),
    click.option("--prioritized-groups", metavar="GROUP", help="Priority group with the prioritized policy."),
    click.option(
        "--pinned-ttl",
        "priority_timeout",
        type=DURATION,
        help="How long a pinned client may be silent before it loses the pin.",
    ),
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
