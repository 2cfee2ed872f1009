"""The engine's options, validated by the configuration."""

from __future__ import annotations

import msgspec

from jetlake.model.rules.limits import ServerLimits

__all__ = ["EngineOptions"]


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The server-wide settings of JetStream."""

    server_name: str = "jetlake"
    """Named as the leader in stream info, and as the server in audit events."""
    domain: str = ""
    """JetStream domain. Default: none."""
    sync_interval_ns: int = 0
    """How often the disk is synced, nanoseconds; 0 is `always`: before anything is acknowledged. Default: always."""
    strict: bool = True
    """Refuse API requests with unknown fields. Default: true."""
    max_memory: int = -1
    """Bytes that memory streams of all accounts may hold; -1 is unlimited."""
    max_storage: int = -1
    """Bytes that file streams of all accounts may hold; -1 is unlimited."""
    max_payload: int = 1024 * 1024
    """The largest payload that clients may publish."""
    limits: ServerLimits = ServerLimits()
    """Limits of every stream and consumer."""
    ack_subject_v2: bool = False
    """Send ack subjects of version 2. Default: version 1; both are understood always."""
