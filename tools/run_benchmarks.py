"""Runs every benchmark in its quick form, one after the other, and writes what they print to one log.

    python tools/run_benchmarks.py [NAME ...]

A script that fails, or is not done within its bound, does not keep the others from running; the exit status is 1 then.
The log, `build/bench.log`, begins with the machine: `tools/render_benchmarks.py` draws the pages' tables from it. That
of some scripts alone is `build/bench-some.log`.
"""

from __future__ import annotations

import compileall
import datetime
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOG = ROOT / "build" / "bench.log"
LOG_OF_SOME = "bench-some.log"
BOUND_S = 300
BOUNDS_S = {"client": 480, "lake": 600, "latency": 600, "scale": 900, "spark": 480, "spark_delay": 480}
"""Seconds that the longer scripts may take; the others have `BOUND_S`. An idle machine needs less than half of it."""


def names() -> list[str]:
    """The scripts, in the order in which they run."""
    return sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py"))


def machine() -> str:
    """One line about where and when the benchmarks run, with the load that was there before."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    nats_server = [str(Path(sys.executable).with_name("nats-server")), "--version"]
    version = re.search(r"v([\d.]+)", subprocess.run(nats_server, capture_output=True, text=True, check=True).stdout)
    return ", ".join(
        (
            f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
            f"{os.cpu_count()} CPUs",
            f"{memory:.0f} GiB",
            f"{platform.system()} {platform.release()}",
            f"Python {platform.python_version()}",
            f"nats-server {version[1] if version else 'of an unknown version'}",
            f"load {os.getloadavg()[0]:.1f} before",
        )
    )


def run(name: str, bound_s: float) -> tuple[str, bool]:
    """Run one script; what it prints, with a last line that says how it ended, and whether that was well."""
    started = time.monotonic()
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick"]
    with tempfile.TemporaryDirectory(prefix="jetlake-bench-", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "TMPDIR": folder}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        ) as process:
            try:
                output, _ = process.communicate(timeout=bound_s)
                reason = f"exit status {process.returncode}" if process.returncode else ""
            except subprocess.TimeoutExpired:
                output, reason = "", f"not done within {bound_s:g} s"
            finally:
                # Servers and workers that the script leaves behind would slow down the next one.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
    seconds = f"{time.monotonic() - started:.0f} s"
    return f"{output}== {f'failed after {seconds}: {reason}' if reason else f'done in {seconds}'}\n", not reason


def main(chosen: list[str]) -> int:
    """Run the chosen scripts, or all of them."""
    if unknown := set(chosen) - set(names()):
        raise SystemExit(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    path = LOG.with_name(LOG_OF_SOME) if chosen else LOG
    path.parent.mkdir(exist_ok=True)
    failed = []
    # As an installed package is; many scripts start processes, and each would compile what has changed for itself.
    compileall.compile_dir(ROOT / "src", quiet=2)
    with path.open("w") as log:

        def tell(text: str) -> None:
            print(text, end="", flush=True)
            log.write(text)
            log.flush()

        tell(f"# `make bench`, {machine()}\n")
        for name in chosen or names():
            tell(f"== benchmarks/{name}.py --quick\n")
            output, is_well = run(name, BOUNDS_S.get(name, BOUND_S))
            tell(output)
            if not is_well:
                failed.append(name)
    print(f"log: {path.relative_to(ROOT)}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    # So that a script does not go on without this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
