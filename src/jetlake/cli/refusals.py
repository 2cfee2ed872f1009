"""Refusals of a JetStream server as sentences: which stream or consumer each is about, and what to do."""

from __future__ import annotations

from jetlake.errors import ApiError, ConsumerNotFoundError, StreamNotFoundError

__all__ = ["refusal"]

_KINDS = {"KV_": ("bucket", "kv"), "OBJ_": ("object store", "object")}
"""What a stream holds, by the prefix of its name, and the group of its commands."""


def refusal(error: ApiError) -> str:
    """Return the server's own words, the name that is meant, the code and what to do."""
    from jetlake.model.api import API_PREFIX, match  # Loaded only where something went wrong.

    call = match(f"{API_PREFIX}.{error.request}")
    stream, consumer = (call.stream, call.consumer) if call else ("", "")
    if stream and isinstance(error, StreamNotFoundError):
        kind, group, name = _thing(stream)
        return f"{kind} {name} not found ({error.err_code}). See what there is: jetlake {group} ls"
    if consumer and isinstance(error, ConsumerNotFoundError):
        return (
            f"consumer {consumer} not found on stream {stream} ({error.err_code}). "
            f"See what there is: jetlake consumer ls {stream}"
        )
    about = _about(stream, consumer, "" if call else error.request)
    hint = f". To do: {error.hint}" if error.hint else ""
    return f"{about}{error.description} ({error.err_code}){hint}"


def _thing(stream: str) -> tuple[str, str, str]:
    for prefix, (kind, group) in _KINDS.items():
        if stream.startswith(prefix):
            return kind, group, stream.removeprefix(prefix)
    return "stream", "stream", stream


def _about(stream: str, consumer: str, subject: str) -> str:
    """Name what was refused, in front of the server's words."""
    if subject.startswith(("$KV.", "$O.")):
        # Objects are stored under names that nobody typed.
        bucket, _, key = subject.partition(".")[2].partition(".")
        return f"{bucket} > {key}: " if subject.startswith("$KV.") else f"object store {bucket}: "
    if subject:
        return f"{subject}: "
    if not stream:
        return ""
    kind, _, name = _thing(stream)
    return f"consumer {stream} > {consumer}: " if consumer else f"{kind} {name}: "
