"""A stream on the screen: its configuration, its state, what it copies and who copies it."""

from __future__ import annotations

from jetlake.cli import output
from jetlake.model.stream import StreamInfo, StreamSourceInfo

__all__ = ["print_info"]


def print_info(info: StreamInfo, as_json: bool, title: str) -> None:
    """Print a stream; `{created}` in the title is when it was made."""
    if as_json:
        output.print_json(info)
        return
    config, state = info.config, info.state
    output.print_facts(
        title.format(created=output.when(info.created)),
        {
            "Configuration": [
                ("Description", config.description),
                ("Subjects", ", ".join(config.subjects)),
                ("Retention", config.retention.value),
                ("Storage", config.storage.value),
                ("Replicas", config.num_replicas),
                ("Discard Policy", config.discard.value),
                ("Acknowledgements", output.yes_no(not config.no_ack)),
                ("Direct Get", output.yes_no(config.allow_direct)),
                ("Sealed", "yes" if config.sealed else None),
                ("Duplicate Window", output.duration(config.duplicate_window)),
                ("Maximum Messages", output.count(config.max_msgs)),
                ("Maximum Per Subject", output.count(config.max_msgs_per_subject)),
                ("Maximum Bytes", output.size(config.max_bytes)),
                ("Maximum Age", output.duration(config.max_age) if config.max_age else "unlimited"),
                ("Maximum Message Size", output.size(config.max_msg_size)),
                ("Maximum Consumers", output.count(config.max_consumers)),
                *((f"Metadata {key}", value) for key, value in config.metadata.items() if not key.startswith("_nats.")),
            ],
            "State": [
                ("Messages", output.count(state.messages)),
                ("Bytes", output.size(state.bytes)),
                ("FirstSeq", f"{output.count(state.first_seq)} @ {output.when(state.first_ts)}"),
                ("LastSeq", f"{output.count(state.last_seq)} @ {output.when(state.last_ts)}"),
                ("Deleted Messages", state.num_deleted or None),
                ("Lost Messages", len(state.lost.msgs or ()) if state.lost else None),
                ("Subjects", output.count(state.num_subjects)),
                ("Active Consumers", output.count(state.consumer_count)),
            ],
            "Replication": output.cluster_facts(info.cluster),
            "Copied from": [
                (f"{kind} {source.name}", _copying(source))
                for kind, sources in (("Mirror of", (info.mirror,) if info.mirror else ()), ("Source", info.sources))
                for source in sources
            ],
        },
    )


def _copying(source: StreamSourceInfo) -> str:
    """Write how far a mirror or source is."""
    trouble = f", {source.error.description}" if source.error is not None else ""
    return f"{output.count(source.lag)} to come, {output.heard(source.active)}{trouble}"
