"""The commands by name, with aliases and the module of each; importing this table loads no command and not click."""

from __future__ import annotations

EXIT_INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended."""

COMMANDS = {
    "account": ("server", "account", "Show the account's JetStream usage and limits."),
    "ack-watch": ("messages", "ack_watch", "Print ack samples as they arrive."),
    "auth": ("auth", "auth", "Create operators, accounts and users for a server that trusts tokens."),
    "audit": ("audit", "audit", "Collect and check what servers report."),
    "bench": ("bench", "bench", "Measure publishing and reading."),
    "catalog": ("catalog", "catalog", "Serve the Iceberg tables of a lake to their readers."),
    "cheat": ("diagnosis", "cheat", "Print examples of commands."),
    "completion": ("completion", "completion", "Print a completion script for your shell."),
    "consumer": ("consumer", "consumer", "Create, list, inspect, edit and read from consumers."),
    "context": ("context", "context", "Save servers and credentials under a name."),
    "counter": ("counter", "counter", "Read and increment counters."),
    "dashboard": ("dashboard", "dashboard", "Show streams and consumers on a web page."),
    "dead-letters": ("dead_letters", "dead_letters", "List, show and replay dead letters."),
    "doctor": ("doctor", "doctor", "Check the installation, the machine, the disk and the server."),
    "errors": ("errors", "errors", "Look up error codes."),
    "events": ("events", "events", "Watch the server's events, or collect them in a stream."),
    "kv": ("kv", "kv", "Use key-value buckets."),
    "latency": ("diagnosis", "latency", "Measure the latency between two servers."),
    "mcp": ("mcp", "mcp", "Serve streams and consumers as tools for language models."),
    "micro": ("services", "micro", "Find services and show their statistics."),
    "migrate": ("migrate", "migrate", "Move a stream to another server or cluster."),
    "object": ("objects", "objects", "Store files in object stores."),
    "pipeline": ("pipeline", "pipeline", "Run a ready-made data pipeline on Spark."),
    "pub": ("messages", "pub", "Publish a message."),
    "reply": ("messages", "reply", "Answer requests."),
    "req": ("messages", "req", "Send a request and print the replies."),
    "rtt": ("server", "rtt", "Measure the round trip to each server."),
    "schedule": ("schedule", "schedule", "Schedule messages: once, at intervals, or by cron expression."),
    "schema": ("schema", "schema", "Keep schemas of payloads, and check messages against them."),
    "serve": ("server", "serve", "Run the embedded JetStream server, with nats-server's flags."),
    "server": ("server", "server", "Inspect the server, its clients and its storage."),
    "top": ("diagnosis", "top", "Watch the clients of a server."),
    "trace": ("diagnosis", "trace", "Trace a message to its streams and subscribers."),
    "traffic": ("diagnosis", "traffic", "Count messages by kind."),
    "stream": ("stream", "stream", "Create, list, inspect, edit, purge and delete streams."),
    "sub": ("subscribe", "sub", "Print published messages."),
}
"""Name of a command: its module in `commands`, the attribute there, and the line of the help."""

_EXTRAS = {
    "client": ("nkeys", "websockets"),
    "cli": ("click", "rich"),
    "mcp": ("mcp", "pydantic"),
    "server": ("bcrypt", "cramjam", "google_crc32c", "starlette", "tzdata", "uvicorn", "uvloop", "xxhash"),
    "spark": ("numpy", "pandas", "pyarrow", "pyspark", "yaml"),
}
_EXTRA_OF = {package: extra for extra, packages in _EXTRAS.items() for package in packages}


def install_hint(module: str) -> str:
    """Say which package is missing, by the name of a module that was not found, and the smallest extra with it."""
    package = module.partition(".")[0]
    extra = _EXTRA_OF.get(package, "all")
    return f"package {package!r} is not installed: pip install 'jetlake[{extra}]'"


def plain_help() -> str:
    """Return the help for an installation without a command-line library."""
    width = max(map(len, COMMANDS))
    lines = [
        "Usage: jetlake [OPTIONS] COMMAND [ARGS]...",
        "",
        "  JetStream for Python: an embedded server, a client, and data pipelines on Spark.",
        "",
        "  Only the client is installed. Install 'jetlake[cli]' for the commands, 'jetlake[server]' for the server and",
        "  the dashboard, 'jetlake[spark]' for the pipelines.",
        "",
        "Commands:",
        *(f"  {name:<{width}}  {summary}" for name, (_, _, summary) in sorted(COMMANDS.items())),
    ]
    return "\n".join(lines) + "\n"


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
    "ctr": "counter",
    "err": "errors",
    "error": "errors",
    "lat": "latency",
}
_COMMANDS = {
    "create": ("add", "save"),
    "add": ("save",),
    "new": ("add",),
    "list": ("ls",),
    "l": ("ls", "lookup"),
    "nfo": ("info",),
    "i": ("info", "increment"),
    "delete": ("rm",),
    "del": ("rm",),
    "remove": ("rm",),
    "update": ("edit",),
    "vi": ("edit",),
    "status": ("info",),
    "show": ("info", "lookup"),
    "view": ("info", "lookup"),
    "cp": ("copy",),
    "query": ("find",),
    "find": ("lookup",),
    "get": ("lookup",),
    "subs": ("subjects", "subscriptions"),
    "subj": ("subjects",),
    "switch": ("select",),
    "set": ("select",),
    "-": ("previous",),
    "v": ("view", "info"),
    "g": ("get",),
    "incr": ("increment",),
    "snapshot": ("backup",),
    "conn": ("connection", "connections"),
    "connz": ("connections",),
    "conns": ("connections",),
    "js": ("jetstream",),
    "jsz": ("jetstream",),
    "acct": ("accounts", "account"),
    "account": ("accounts",),
    "accountz": ("accounts",),
    "var": ("variables",),
    "varz": ("variables",),
    "sub": ("subscriptions",),
    "subsz": ("subscriptions",),
    "route": ("routes",),
    "routez": ("routes",),
    "gateway": ("gateways",),
    "gatewayz": ("gateways",),
    "gwy": ("gateways",),
    "super": ("gateways",),
    "leaf": ("leafnodes",),
    "leafz": ("leafnodes",),
    "leafs": ("leafnodes",),
    "healthz": ("jetstream-health",),
    "raft": ("meta", "cluster"),
    "r": ("cluster",),
    "c": ("cluster",),
    "srv": ("servers",),
    "rep": ("report",),
    "req": ("request", "requests"),
    "mapping": ("mappings",),
    "msg": ("message",),
    "pass": ("passwd",),
    "mkpasswd": ("passwd",),
    "stats": ("statistics",),
    "statsz": ("statistics",),
    "stepdown": ("step-down",),
    "sd": ("step-down",),
    "elect": ("step-down",),
    "down": ("step-down",),
    "d": ("step-down",),
    "pr": ("peer-remove",),
    "peer-rm": ("peer-remove",),
    "check": ("validate",),
}


def full_name(name: str) -> str:
    """Return the name of the group that a short name behind `jetlake` stands for; a name that is none stays."""
    return _GROUPS.get(name, name)


def full_names(name: str) -> tuple[str, ...]:
    """Return the commands within a group that another name may stand for, by the group."""
    return _COMMANDS.get(name, ())
