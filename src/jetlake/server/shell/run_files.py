"""The files of a running server: its process id, and the ports it listens on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.json import encode

from jetlake.errors import ConfigError

if TYPE_CHECKING:
    from jetlake.server.shell.server import Server

__all__ = ["remove_ports_file", "write_pid_file", "write_ports_file"]


def write_pid_file(server: Server) -> None:
    """Write the process id where the options want it.

    Raises:
        ConfigError: it cannot be written.
    """
    path = server.options.pid_file
    if path:
        _write(Path(path), str(os.getpid()).encode())


def write_ports_file(server: Server) -> None:
    """Write the URLs that clients and monitoring are found at, into the folder that the options name.

    Raises:
        ConfigError: it cannot be written.
    """
    options = server.options
    if options.ports_file_dir:
        scheme = "tls" if options.tls is not None else "nats"
        ports = {"nats": _urls(scheme, options.host, server.port)}
        if server.monitoring is not None:
            web = "https" if options.https else "http"
            ports["monitoring"] = _urls(web, server.monitoring.host, server.monitoring.port)
        _write(_ports_file(options.ports_file_dir), encode(ports))


def remove_ports_file(server: Server) -> None:
    """The ports are not listened on any more."""
    if server.options.ports_file_dir:
        _ports_file(server.options.ports_file_dir).unlink(missing_ok=True)


def _ports_file(folder: str) -> Path:
    return Path(folder) / f"{Path(sys.argv[0]).name or 'jetlake'}_{os.getpid()}.ports"


def _write(path: Path, data: bytes) -> None:
    aside = path.with_name(path.name + ".tmp")
    try:
        aside.write_bytes(data)
        aside.replace(path)  # whoever waits for the file finds all of it
    except OSError as error:
        raise ConfigError(f"could not write {path}: {error.strerror}") from None


def _urls(scheme: str, host: str, port: int) -> list[str]:
    hosts = ["127.0.0.1", "[::1]"] if host in ("0.0.0.0", "::", "") else [f"[{host}]" if ":" in host else host]
    return [f"{scheme}://{each}:{port}" for each in hosts]
