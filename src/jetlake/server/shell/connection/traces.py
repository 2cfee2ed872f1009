"""Frames as readable lines for the protocol trace, with every secret removed."""

from __future__ import annotations

import re

from jetlake.protocol.frames import Connect, Frame, Ping, Pong, Pub, Sub, Unsub

__all__ = ["describe_frame", "describe_output", "readable"]

_SECRETS = rb'("(?:pass|auth_token|sig|jwt|nkey|password)"\s*:\s*)(?:"(?:[^"\\]|\\.)*"|[^,}\s]+)'


def describe_frame(frame: Frame, payload_max: int = 0) -> str:
    """Return one line for a frame that came in; of a payload this many bytes at most, 0 = all."""
    if isinstance(frame, Pub):
        verb = "HPUB" if frame.header else "PUB"
        line = _join(verb, frame.subject, frame.reply, len(frame.header) + len(frame.payload))
        payload = frame.payload[:payload_max] + b"..." if 0 < payload_max < len(frame.payload) else frame.payload
        return f"{line} {readable(payload)!r}"
    if isinstance(frame, Sub):
        return _join("SUB", frame.subject, frame.queue, frame.sid)
    if isinstance(frame, Unsub):
        return _join("UNSUB", frame.sid, frame.max or b"")
    if isinstance(frame, Connect):
        return f"CONNECT {readable(redact(frame.json))}"
    if isinstance(frame, Ping):
        return "PING"
    return "PONG" if isinstance(frame, Pong) else type(frame).__name__.upper()


def describe_output(data: bytes) -> list[str]:
    """Return one line for each frame that goes out: of messages the first line alone."""
    lines = []
    position = 0
    while position < len(data):
        end = data.find(b"\r\n", position)
        if end < 0:
            break
        line = data[position:end]
        position = end + 2
        if line.startswith((b"MSG ", b"HMSG ")):
            position += int(line.rsplit(b" ", 1)[1]) + 2
        lines.append(readable(line.rstrip()))
    return lines


def redact(json: bytes) -> bytes:
    """Return the text of CONNECT without what only the client should know."""
    return re.sub(_SECRETS, rb'\1"[REDACTED]"', json, flags=re.IGNORECASE)


def _join(*parts: object) -> str:
    return " ".join(readable(part) if isinstance(part, bytes) else str(part) for part in parts if part != b"")


def readable(data: bytes) -> str:
    """Decode bytes of the wire, which may be anything."""
    return data.decode("utf-8", "backslashreplace")
