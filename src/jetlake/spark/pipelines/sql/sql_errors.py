"""What a failed query of an SQL pipeline tells: its sink and step with the line, the messages, and what to do."""

from __future__ import annotations

import json
import re

from jetlake.spark.pipelines.sql.sql_file import SqlFile, SqlSink

__all__ = ["explain_failure"]

# Spark shows the piece of SQL that failed, and where in its text that is.
_FRAGMENT = re.compile(r"== SQL \(line (\d+), position \d+\) ==\n(.*)\n")
_AVAILABLE = re.compile(r"^Current Available Offsets: \{.*?: (\{\"v\".*)\}$", re.MULTILINE)
_CHANGED = re.compile(
    r"STATE_STORE_\w*SCHEMA_NOT_COMPATIBLE|STATE_STORE_KEY_SCHEMA|STREAMING_STATEFUL_OPERATOR_NOT_MATCH|"
    r"Multiple stateful operators|number of stateful operators"
)


def explain_failure(spec: SqlFile, sink: SqlSink, checkpoint: str, reason: str, text: str) -> str:
    """Return the failure of a sink's query in one sentence for whoever wrote the file.

    Args:
        reason: what went wrong, in short.
        text: all that Spark says of it.
    """
    reason = re.sub(r"[.;\s]*SQLSTATE: \w+\.?$", "", reason)
    if _CHANGED.search(text):
        return (
            f"{spec.file}:{sink.line}: sink {sink.name} can't go on with what it has summed up so far: its query, or "
            f"one before it, was changed, and its checkpoint {checkpoint} is of the old one ({reason}). Put the query "
            f"back, give the sink another name and place, or let it begin anew: jetlake pipeline sql {spec.file} "
            f"--reset {sink.name}"
        )
    step, line = _step(spec, text)
    where = f" in step {step}" if step else ""
    among = _messages(text)
    return f"{spec.file}:{line or sink.line}: sink {sink.name}{where}: {reason}{among}"


def _step(spec: SqlFile, text: str) -> tuple[str, int]:
    """Return the step whose SQL holds the piece that failed, and its line in the file."""
    for found in _FRAGMENT.finditer(text):
        number, fragment = int(found[1]), found[2].strip()
        for step in spec.steps:
            lines = step.sql.splitlines()
            if number <= len(lines) and fragment.strip(".") in lines[number - 1]:
                return step.name, step.sql.line + number - 1
    return "", 0


def _messages(text: str) -> str:
    """Return the messages of the batch that failed."""
    ranges = []
    for found in _AVAILABLE.finditer(text):
        try:
            streams = json.JSONDecoder().raw_decode(found[1])[0]["streams"]
            ranges += [(name, place["batch"]["from"], place["next"] - 1) for name, place in streams.items()]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    told = [f"{first} to {last} of {name}" for name, first, last in ranges if first <= last]
    return f" (among messages {', '.join(told)})" if told else ""
