"""A server beside a worker, for development: nothing to install, nothing to start."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from celery.signals import worker_init, worker_shutdown
from kombu.utils.url import parse_url

from jetlake.errors import ConfigError

_START_S = 30.0
_STOP_S = 30.0
_LOCAL = {"localhost", "127.0.0.1", "::1", None, ""}


def development_server(app: Any, store_dir: str | os.PathLike[str] = "celery-data") -> None:
    """Let the workers of an app bring the server along: the first one starts `jetlake serve`, and stops it at its end.

    A worker that finds a server at the broker's address uses it and starts none. The server runs in a process of its
    own; one whose worker was killed keeps running, and the next worker finds it. For production run `jetlake serve` as
    a service, or a nats-server cluster.

    Args:
        app: the Celery app, whose broker is `jetstream://localhost:PORT`.
        store_dir: where the server keeps queues and results.

    Raises:
        ConfigError: the broker is elsewhere.
    """
    server = _Server(app, Path(store_dir))
    server.port()
    worker_init.connect(server.start, weak=False)
    worker_shutdown.connect(server.stop, weak=False)


class _Server:
    """The process of a server.

    Args:
        app: the Celery app.
        store_dir: where it keeps its data and its log.
    """

    def __init__(self, app: Any, store_dir: Path) -> None:
        self._app = app
        self._store_dir = store_dir
        self._process: subprocess.Popen[bytes] | None = None

    def port(self) -> int:
        """Return the port of the broker's address.

        Raises:
            ConfigError: the broker is elsewhere.
        """
        parts = parse_url(self._app.conf.broker_url or "")
        if parts["transport"] != "jetstream" or parts["hostname"] not in _LOCAL:
            raise ConfigError(
                f"development_server starts a server on this machine, but the broker is {self._app.conf.broker_url!r}: "
                "set broker_url='jetstream://localhost:4222'"
            )
        return int(parts["port"] or 4222)

    def start(self, **_: Any) -> None:
        """Start it, unless one listens already, and wait until it listens."""
        port = self.port()
        if _listens(port):
            return
        self._store_dir.mkdir(parents=True, exist_ok=True)
        log = self._store_dir / "server.log"
        serve = [sys.executable, "-m", "jetlake", "serve", "-a", "127.0.0.1", "-p", str(port)]
        # A session of its own: Ctrl-C is for the worker, which finishes its tasks before the server may go.
        self._process = subprocess.Popen(
            [*serve, "-sd", str(self._store_dir), "-l", str(log)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.stop, of=os.getpid())
        deadline = time.monotonic() + _START_S
        while not _listens(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                if self._process.poll() is not None and _listens(port):
                    break  # Another worker was faster.
                self.stop()
                raise ConfigError(f"the development server did not start on port {port}; its log is {log}")
            time.sleep(0.05)

    def stop(self, of: int | None = None, **_: Any) -> None:
        """Stop it, if this worker started it, and not a process that it forked."""
        if of not in (None, os.getpid()):
            return
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
