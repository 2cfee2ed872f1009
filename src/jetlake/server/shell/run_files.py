"""The files of a running server: its process id, and the ports it listens on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from msgspec.json import encode

from jetlake.errors import ConfigError
from jetlake.server.config.options import Options

__all__ = ["remove_ports_file", "write_pid_file", "write_ports_file"]


def write_pid_file(options: Options) -> None:
    """Write the process id into the file that the options name.

    Raises:
        ConfigError: the file cannot be written.
    """
    if options.pid_file:
        _write(Path(options.pid_file), str(os.getpid()).encode())


def write_ports_file(
    options: Options,
    port: int,
    monitoring: tuple[str, int] | None,
    websocket_port: int | None,
    leafnodes_port: int | None,
) -> None:
    """Write the URLs for clients, for leaf nodes and of monitoring into the folder that the options name.

    Args:
        port: the port for clients.
        monitoring: host and port of monitoring; None where there is none.
        websocket_port: the port for clients over WebSocket; None where there is none.
        leafnodes_port: the port for leaf nodes; None where there is none.

    Raises:
        ConfigError: the file cannot be written.
    """
    if options.ports_file_dir:
        ports = {"nats": _urls("tls" if options.tls is not None else "nats", options.host, port)}
        if monitoring is not None:
            ports["monitoring"] = _urls("https" if options.https else "http", *monitoring)
        if websocket_port is not None and options.websocket is not None:
            scheme = "wss" if options.websocket.tls is not None else "ws"
            ports["websocket"] = _urls(scheme, options.websocket.host or options.host, websocket_port)
        if leafnodes_port is not None and options.leafnodes.listen is not None:
            ports["leafnodes"] = _urls("nats", options.leafnodes.listen.host, leafnodes_port)
        _write(_ports_file(options.ports_file_dir), encode(ports))


def remove_ports_file(options: Options) -> None:
    """Remove the file of `write_ports_file`."""
    if options.ports_file_dir:
        _ports_file(options.ports_file_dir).unlink(missing_ok=True)


def _ports_file(folder: str) -> Path:
    return Path(folder) / f"{Path(sys.argv[0]).name or 'jetlake'}_{os.getpid()}.ports"


def _write(path: Path, data: bytes) -> None:
    aside = path.with_name(path.name + ".tmp")
    try:
        aside.write_bytes(data)
        aside.replace(path)  # a reader of the file finds all of it
    except OSError as error:
        raise ConfigError(f"could not write {path}: {error.strerror}") from None


def _urls(scheme: str, host: str, port: int) -> list[str]:
    hosts = ["127.0.0.1", "[::1]"] if host in ("0.0.0.0", "::", "") else [f"[{host}]" if ":" in host else host]
    return [f"{scheme}://{each}:{port}" for each in hosts]
