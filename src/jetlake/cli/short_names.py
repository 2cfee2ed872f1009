"""The short and other names of commands, as the `nats` command has them."""

from __future__ import annotations

__all__ = ["full_name"]

_GROUPS = {
    "str": "stream",
    "st": "stream",
    "ms": "stream",
    "s": "stream",
    "con": "consumer",
    "obs": "consumer",
    "c": "consumer",
    "a": "account",
    "act": "account",
    "srv": "server",
    "sys": "server",
    "ctx": "context",
    "obj": "object",
    "service": "micro",
    "services": "micro",
    "svc": "micro",
    "sched": "schedule",
    "schedules": "schedule",
    "publish": "pub",
    "request": "req",
    "subscribe": "sub",
    "event": "events",
    "e": "events",
}
_COMMANDS = {
    "create": "add",
    "new": "add",
    "list": "ls",
    "l": "ls",
    "nfo": "info",
    "i": "info",
    "delete": "rm",
    "del": "rm",
    "update": "edit",
    "status": "info",
    "cp": "copy",
    "query": "find",
    "subs": "subjects",
}


def full_name(name: str, *, is_group: bool) -> str:
    """Return the name of the command that a short name stands for; a name that is none stays.

    Args:
        is_group: whether the name stands right behind `jetlake`, where the groups are.
    """
    return (_GROUPS if is_group else _COMMANDS).get(name, name)
