"""The commands by name, each with the place of its code: read without loading any of it, or a command-line library."""

from __future__ import annotations

__all__ = ["COMMANDS", "EXIT_INTERRUPTED", "install_hint", "plain_help"]

EXIT_INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended."""

COMMANDS = {
    "account": ("server.account_commands", "account", "Show the account's JetStream usage and limits."),
    "ack-watch": ("messages.message_commands", "ack_watch", "Print ack samples as they arrive."),
    "bench": ("bench_commands", "bench", "Measure publishing and reading."),
    "completion": ("completion_command", "completion", "Print a completion script for your shell."),
    "consumer": ("consumer.consumer_group", "consumer", "Create, list, inspect, edit and read from consumers."),
    "context": ("context_commands", "context", "Save servers and credentials under a name."),
    "dashboard": ("dashboard_command", "dashboard", "Show streams and consumers on a web page."),
    "dead-letters": ("dead_letter_commands", "dead_letters", "List, show and replay dead letters."),
    "demo": ("demo_command", "demo", "Run the whole system once and check the counts."),
    "events": ("server.event_commands", "events", "Watch the server's events, or collect them in a stream."),
    "kv": ("kv.kv_group", "kv", "Use key-value buckets."),
    "micro": ("service_commands", "micro", "Find services and show their statistics."),
    "migrate": ("migrate_command", "migrate", "Move a stream to another server or cluster."),
    "object": ("object_commands", "objects", "Store files in object stores."),
    "pipeline": ("pipeline_commands", "pipeline", "Run a ready-made data pipeline on Spark."),
    "pub": ("messages.message_commands", "pub", "Publish a message."),
    "reply": ("messages.reply_command", "reply", "Answer requests."),
    "req": ("messages.message_commands", "req", "Send a request and print the replies."),
    "rtt": ("rtt_command", "rtt", "Measure the round trip to each server."),
    "schedule": ("schedule_commands", "schedule", "Schedule messages: once, at intervals, or by cron expression."),
    "serve": ("serve_command", "serve", "Run the embedded JetStream server (takes nats-server's flags)."),
    "server": ("server.server_commands", "server", "Inspect the server, its clients and its storage."),
    "stream": ("stream.stream_group", "stream", "Create, list, inspect, edit, purge and delete streams."),
    "sub": ("messages.message_commands", "sub", "Print published messages."),
}
"""Name of a command: its module in `commands`, the attribute there, and the line of the help."""

_EXTRAS = {
    "client": ("nkeys", "websockets"),
    "cli": ("click", "rich"),
    "server": ("bcrypt", "cramjam", "google_crc32c", "starlette", "tzdata", "uvicorn", "uvloop", "xxhash"),
    "spark": ("numpy", "pandas", "pyarrow", "pyspark", "yaml"),
}
_EXTRA_OF = {package: extra for extra, packages in _EXTRAS.items() for package in packages}


def install_hint(module: str) -> str:
    """Say which package is missing, by the name of a module that was not found, and the smallest extra with it."""
    package = module.partition(".")[0]
    extra = _EXTRA_OF.get(package, "all")
    return f"the package {package!r} is missing here: pip install 'jetlake[{extra}]' brings it"


def plain_help() -> str:
    """Return the help for an installation without a command-line library."""
    width = max(map(len, COMMANDS))
    lines = [
        "Usage: jetlake [OPTIONS] COMMAND [ARGS]...",
        "",
        "  JetStream for Python: an embedded server, a client, and data pipelines on Spark.",
        "",
        "  Only the client is installed. pip install 'jetlake[cli]' brings the commands, 'jetlake[server]' also the",
        "  server and the dashboard, 'jetlake[spark]' the pipelines.",
        "",
        "Commands:",
        *(f"  {name:<{width}}  {summary}" for name, (_, _, summary) in sorted(COMMANDS.items())),
    ]
    return "\n".join(lines) + "\n"
