"""A consumer on the screen: its configuration and its state."""

from __future__ import annotations

from jetlake.cli import output
from jetlake.model.consumer import ConsumerInfo

__all__ = ["print_info"]


def print_info(info: ConsumerInfo, as_json: bool, title: str) -> None:
    """Print a consumer."""
    if as_json:
        output.print_json(info)
        return
    config = info.config
    start = {
        "by_start_sequence": f"from sequence {config.opt_start_seq}",
        "by_start_time": f"from {output.when(config.opt_start_time)}",
    }.get(config.deliver_policy.value, config.deliver_policy.value)
    output.print_facts(
        title,
        {
            "Configuration": [
                ("Description", config.description),
                ("Pull Mode", output.yes_no(not config.deliver_subject)),
                ("Delivery Subject", config.deliver_subject),
                ("Delivery Queue Group", config.deliver_group),
                ("Filter Subjects", config.filter_subject or ", ".join(config.filter_subjects)),
                ("Deliver Policy", start),
                ("Ack Policy", config.ack_policy.value),
                ("Ack Wait", output.duration(config.ack_wait) if config.ack_wait else None),
                ("Backoff", ", ".join(output.duration(wait) for wait in config.backoff)),
                ("Replay Policy", config.replay_policy.value),
                ("Maximum Deliveries", output.count(config.max_deliver) if config.max_deliver else None),
                ("Max Ack Pending", output.count(config.max_ack_pending) if config.max_ack_pending else None),
                ("Max Waiting Pulls", output.count(config.max_waiting) if config.max_waiting else None),
                ("Sampling Rate", config.sample_freq),
                ("Idle Heartbeat", output.duration(config.idle_heartbeat) if config.idle_heartbeat else None),
                ("Flow Control", "yes" if config.flow_control else None),
                (
                    "Inactive Threshold",
                    output.duration(config.inactive_threshold) if config.inactive_threshold else None,
                ),
                ("Priority Policy", config.priority_policy.value if config.priority_groups else None),
                ("Priority Groups", ", ".join(config.priority_groups)),
                *((f"Metadata {key}", value) for key, value in config.metadata.items() if not key.startswith("_nats.")),
            ],
            "State": [
                ("Last Delivered Message", _pair(info.delivered.consumer_seq, info.delivered.stream_seq)),
                ("Acknowledgment floor", _pair(info.ack_floor.consumer_seq, info.ack_floor.stream_seq)),
                ("Outstanding Acks", output.count(info.num_ack_pending)),
                ("Redelivered Messages", output.count(info.num_redelivered)),
                ("Unprocessed Messages", output.count(info.num_pending)),
                ("Waiting Pulls", output.count(info.num_waiting) if not config.deliver_subject else None),
                ("Active Interest", output.yes_no(info.push_bound) if config.deliver_subject else None),
                ("Paused", f"for {output.duration(info.pause_remaining)}" if info.paused else None),
                *(
                    (f"Group {group.group}", f"pinned to {group.pinned_client_id or 'nobody'}")
                    for group in info.priority_groups
                ),
            ],
            "Replication": output.cluster_facts(info.cluster),
        },
    )


def _pair(consumer_seq: int, stream_seq: int) -> str:
    return f"Consumer sequence: {consumer_seq:,} Stream sequence: {stream_seq:,}"
