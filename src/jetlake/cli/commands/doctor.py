"""`jetlake doctor`: the first questions of support, about this machine, this installation and the server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median, quantiles
from textwrap import fill
from typing import Any, Literal

import click
import msgspec

from jetlake import platform
from jetlake.cli import output
from jetlake.cli.session import EXIT_FAILED, Session, command, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.errors import JetlakeError, NoServersError
from jetlake.version import __version__

State = Literal["ok", "warning", "failed"]
_MARKS: dict[State, str] = {"ok": "ok", "warning": "!!", "failed": "XX"}
_SYNCS = 50
_SLOW_SYNC_S = 0.02
_FILES_WANTED = 4096
_FREE_WANTED = 1 << 30
_CLOCKS_APART_S = 2
_JAVA_VERSION = 17
_CONFIGURATIONS = ("meta.json", "meta.copy.json")  # of a stream; either is enough
_NO_SERVER = "start one with `jetlake serve`, or name another one with --server or --context"
_EXTRAS = {
    "cli": ("click", "rich"),
    "client": ("nkeys", "websockets"),
    "server": ("xxhash", "cramjam", "google-crc32c", "bcrypt", "uvicorn", "starlette"),
    "arrow": ("pyarrow", "numpy"),
    "spark": ("pyspark", "pandas", "PyYAML"),
    "avro": ("fastavro",),
    "protobuf": ("protobuf",),
    "schemas": ("jsonschema",),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
    "otel": ("opentelemetry-api",),
    "encryption": ("cryptography",),
    "celery": ("celery",),
    "django": ("django",),
    "fastapi": ("fastapi",),
    "mcp": ("mcp",),
}
"""Each extra, and the packages that tell whether it is installed."""


class Finding(msgspec.Struct, frozen=True):
    """One line of the report."""

    check: str
    """The name of the check."""
    state: State
    """Whether it is as it should be."""
    found: str
    """The finding."""
    advice: str = ""
    """What to do about it; empty when nothing has to be done."""


@click.command("doctor", cls=SharedCommand, example="jetlake doctor --store-dir /var/lib/jetlake")
@click.option(
    "--store-dir",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Store directory of a server; syncs are measured there.  [default: a temporary directory]",
)
@json_option
@command
async def doctor(session: Session, folder: Path | None, as_json: bool) -> None:
    """Check the installation, the machine, the disk and the server. Exits with 1 when a check failed."""
    findings = [*_installation(), *_machine(), *_storage(folder), await _server(session)]
    if as_json:
        output.print_json(findings)
    else:
        indent = max(len(finding.check) for finding in findings) + 6
        for finding in findings:
            click.echo(_lines(f"{_MARKS[finding.state]}  {finding.check}", indent, output.printable(finding.found)))
            if finding.advice:
                click.echo(_lines("", indent, finding.advice))
    if any(finding.state == "failed" for finding in findings):
        raise SystemExit(EXIT_FAILED)


def _lines(start: str, indent: int, text: str) -> str:
    """Indent a text behind its start: on one line, or on a terminal on as many as its width asks for."""
    start = f"{start:<{indent}}"
    width = shutil.get_terminal_size().columns
    if not sys.stdout.isatty() or width < indent * 2:
        return start + text
    blank = " " * indent
    return fill(
        text, width, initial_indent=start, subsequent_indent=blank, break_long_words=False, break_on_hyphens=False
    )


def _installation() -> Iterator[Finding]:
    yield Finding("jetlake", "ok", f"{__version__}, in {Path(__file__).parents[2]}")
    yield Finding("Python", "ok", f"{sys.version.split()[0]} ({sys.implementation.name}), {sys.executable}")
    for extra, packages in _EXTRAS.items():
        found = {package: _installed(package) for package in packages}
        missing = [package for package, version in found.items() if not version]
        text = ", ".join(f"{package} {version or '-'}" for package, version in found.items())
        advice = f"not installed: pip install 'jetlake[{extra}]'" if missing else ""
        yield Finding(f"extra {extra}", "warning" if missing else "ok", text, advice)
    yield _java()


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _java() -> Finding:
    advice = (
        f"Spark needs Java {_JAVA_VERSION} or newer: on Debian, apt-get install openjdk-17-jre-headless, or "
        "openjdk-21-jre-headless from Debian 13 on"
    )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None:
        return Finding("Java", "warning", f"none in {home}" if home else "none on PATH", advice)
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("Java", "warning", f"{java}: {error}", advice)
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', told)
    if version is None or int(version[1]) < _JAVA_VERSION:
        return Finding("Java", "warning", f"{java}: {told.strip().partition(chr(10))[0]}", advice)
    return Finding("Java", "ok", f"{version[0].removeprefix('version ')}, {java}")


def _machine() -> Iterator[Finding]:
    import platform as system

    yield Finding("system", "ok", f"{system.platform()}, {output.plural(os.cpu_count() or 1, 'CPU')}")
    yield Finding("memory", "ok", output.size(platform.machine_memory()))
    files = platform.open_files_max()
    few = files is not None and files < _FILES_WANTED
    yield Finding(
        "open files",
        "warning" if few else "ok",
        "no limit" if files is None else output.count(files),
        "each client takes one and each busy stream two: raise it with `ulimit -n`" if few else "",
    )


def _storage(folder: Path | None) -> Iterator[Finding]:
    """Check the directory of a store, and how long a durable write takes there."""
    if folder is not None:
        yield _store(folder)
    where = folder if folder is not None and folder.is_dir() else Path(tempfile.gettempdir())
    try:
        free = shutil.disk_usage(where).free
        yield Finding(
            "free space",
            "ok" if free >= _FREE_WANTED else "warning",
            f"{output.size(free)} in {where}",
            "" if free >= _FREE_WANTED else "the server refuses messages when the disk is full: free some space",
        )
        seconds, apart_s = _measure_syncs(where)
    except OSError as error:
        yield Finding("sync", "failed", f"{where}: {error.strerror}", "the server cannot store messages there")
        return
    middle, slowest = median(seconds), quantiles(seconds, n=100)[98]
    yield Finding(
        "sync",
        "ok" if middle < _SLOW_SYNC_S else "warning",
        f"{platform.SYNC_CALL}: median {middle * 1000:.2f} ms, 99 % within {slowest * 1000:.2f} ms, in {where}",
        ""
        if middle < _SLOW_SYNC_S
        else "a publisher waits this long for each PubAck: use another disk, or publish in windows",
    )
    yield Finding(
        "clock",
        "ok" if apart_s < _CLOCKS_APART_S else "warning",
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "" if apart_s < _CLOCKS_APART_S else f"differs from the file system's clock by {apart_s:.0f} seconds",
    )


def _store(folder: Path) -> Finding:
    try:
        streams = list(_streams(folder / "jetstream"))
        unreadable = [path.name for path in streams if not any(_can_be_read(path / name) for name in _CONFIGURATIONS)]
    except FileNotFoundError:
        return Finding("store", "warning", f"no store in {folder}", "name the directory given to serve as --store_dir")
    except OSError as error:
        advice = "the server needs to read and write all of its directory: run it, and this command, as its owner"
        return Finding("store", "failed", f"{error.filename}: {error.strerror}", advice)
    use = "in use by a server" if _in_use(folder) else "not in use"
    found = f"{output.plural(len(streams), 'stream')} in {folder}, {use}"
    if unreadable:
        return Finding("store", "failed", found, f"no configuration: {', '.join(unreadable[:5])}; see the server's log")
    return Finding("store", "ok", found)


def _streams(jetstream: Path) -> Iterator[Path]:
    for account in jetstream.iterdir():
        with suppress(FileNotFoundError, NotADirectoryError):  # Another file of the server, or nothing stored yet.
            yield from (path for path in (account / "streams").iterdir() if path.is_dir())


def _can_be_read(file: Path) -> bool:
    try:
        with file.open("rb"):
            return True
    except FileNotFoundError:
        return False


def _in_use(folder: Path) -> bool:
    try:
        with (folder / "jetstream.lock").open("rb+") as file:
            platform.lock_file(file.fileno())
    except BlockingIOError:
        return True
    except OSError:
        pass  # No lock file, or no permission: no server of this user.
    return False


def _measure_syncs(folder: Path) -> tuple[list[float], float]:
    """Return how long small durable writes take, and how far the file system's clock is from this machine's."""
    seconds = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix="jetlake-doctor-") as file:
        for _ in range(_SYNCS):
            file.write(b"x" * 512)
            file.flush()
            begun = time.perf_counter()
            platform.sync_data(file.fileno())
            seconds.append(time.perf_counter() - begun)
        return seconds, abs(os.fstat(file.fileno()).st_mtime - time.time())


async def _server(session: Session) -> Finding:
    shown = session.target.shown
    try:
        async with await session.connect() as client:
            rtt_ms = await client.rtt() * 1000
            info: Any = client.server_info
            found = f"{shown}: {info.version}, round trip {rtt_ms:.2f} ms"
            try:
                account = await session.jetstream_of(client).account_info()
            except JetlakeError as error:
                return Finding("server", "warning", found, f"JetStream does not answer: {error}")
            return Finding("server", "ok", f"{found}, {output.plural(account.streams, 'stream')}")
    except NoServersError as error:  # It names them.
        return Finding("server", "warning", str(error), _NO_SERVER)
    except (JetlakeError, OSError) as error:
        return Finding("server", "warning", f"{shown}: {error}", _NO_SERVER)
