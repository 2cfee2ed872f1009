"""The server's log: lines in nats-server's form on a stream or in a file, or records for Python's logging."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TextIO

from jetlake.errors import ConfigError
from jetlake.server.config.options import Options

__all__ = ["LineLog", "Log", "LoggerLog", "open_line_log", "open_log"]

# A peer's words must not steer the terminal that shows the log, nor look like a line of the server's own.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) != "\t"}
_ESCAPES[ord("\n")] = "\n    "


class Log:
    """The log of a server; the base class writes nothing.

    Attributes:
        debugging: debug lines are written.
        tracing: every frame of the wire is written.
    """

    debugging = False
    tracing = False

    def info(self, text: str) -> None:
        """Log an event of normal operation."""
        self.write("INF", text)

    def warn(self, text: str) -> None:
        """Log something that may need attention."""
        self.write("WRN", text)

    def error(self, text: str) -> None:
        """Log an error after which the server continues."""
        self.write("ERR", text)

    def fatal(self, text: str) -> None:
        """Log an error that stops the server."""
        self.write("FTL", text)

    def debug(self, text: str) -> None:
        """Log a detail for debugging."""
        if self.debugging:
            self.write("DBG", text)

    def trace(self, text: str) -> None:
        """Log a frame of the wire."""
        if self.tracing:
            self.write("TRC", text)

    def write(self, level: str, text: str) -> None:
        """Write one line of this level."""

    def reopen(self) -> None:
        """Open the file again, after a log rotation has renamed it."""

    def close(self) -> None:
        """Close the file."""


class LineLog(Log):
    """Lines like `[PID] YYYY/MM/DD HH:MM:SS.ffffff [INF] text`.

    Args:
        path: the file to append to; empty = standard error.
        time_stamps: lines carry the time.
        utc: in UTC rather than in local time.
        size_limit: bytes after which the file is moved aside under a name with the time; 0 = never.
    """

    def __init__(
        self,
        path: str = "",
        *,
        debugging: bool = False,
        tracing: bool = False,
        time_stamps: bool = True,
        utc: bool = False,
        size_limit: int = 0,
    ) -> None:
        self.debugging = debugging
        self.tracing = tracing
        self._path = path
        self._time_stamps = time_stamps
        self._split_time = time.gmtime if utc else time.localtime
        self._size_limit = size_limit
        self._stream: TextIO = self._open()
        self._prefix = f"[{os.getpid()}] "

    def _open(self) -> TextIO:
        if not self._path:
            return sys.stderr
        return Path(self._path).open("a", encoding="utf-8", errors="backslashreplace")

    def write(self, level: str, text: str) -> None:
        stamp = ""
        if self._time_stamps:
            now_ns = time.time_ns()
            moment = self._split_time(now_ns // 1_000_000_000)
            stamp = f"{time.strftime('%Y/%m/%d %H:%M:%S', moment)}.{now_ns // 1000 % 1_000_000:06d} "
        try:
            self._stream.write(f"{self._prefix}{stamp}[{level}] {text.translate(_ESCAPES)}\n")
            self._stream.flush()
        except (OSError, ValueError):
            # A log that cannot be written (full disk, closed terminal) must not stop the server.
            return
        if self._path and self._size_limit and self._stream.tell() > self._size_limit:
            self._move_aside()

    def _move_aside(self) -> None:
        now_ns = time.time_ns()
        moment = time.strftime("%Y.%m.%d.%H.%M.%S", self._split_time(now_ns // 1_000_000_000))
        self._stream.close()
        try:
            Path(self._path).rename(f"{self._path}.{moment}.{now_ns % 1_000_000_000:09d}")
        except OSError:
            pass
        self._stream = self._open()

    def reopen(self) -> None:
        if self._path:
            self._stream.close()
            self._stream = self._open()

    def close(self) -> None:
        if self._path:
            self._stream.close()


class LoggerLog(Log):
    """Records for Python's logger `jetlake.server`: the log of an embedded server."""

    def __init__(self, *, debugging: bool = False, tracing: bool = False) -> None:
        import logging

        self.debugging = debugging
        self.tracing = tracing
        self._logger = logging.getLogger("jetlake.server")
        self._levels = {
            "INF": logging.INFO,
            "WRN": logging.WARNING,
            "ERR": logging.ERROR,
            "FTL": logging.CRITICAL,
        }

    def write(self, level: str, text: str) -> None:
        self._logger.log(self._levels.get(level, 10), "%s", text)


def open_line_log(options: Options) -> LineLog:
    """Open the log in the file that the options name, or on standard error.

    Raises:
        ConfigError: the file cannot be opened.
    """
    try:
        return LineLog(
            options.log_file,
            debugging=options.debug,
            tracing=options.trace,
            time_stamps=options.log_time,
            utc=options.log_time_utc,
            size_limit=options.log_size_limit,
        )
    except OSError as error:
        raise ConfigError(f"could not open log file {options.log_file}: {error.strerror}") from None


def open_log(options: Options) -> Log:
    """Open the log of an embedded server: the file that the options name, or Python's logging."""
    if options.log_file:
        return open_line_log(options)
    return LoggerLog(debugging=options.debug, tracing=options.trace)
