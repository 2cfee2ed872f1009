"""Ten minutes of mixed load with crashes: nothing is lost, and nothing leaks.

    python -m tests.faults.soak [--seconds N] [--crash-every N]

One server process runs under load from both clients while streams and consumers come and go. Every so often a second
server is killed under the same load and compared with what it had promised, as `faults/kill_rounds.py` does. Memory and
open files of the long-lived process are read once its first tenth is over, and again at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from random import Random

from tests.faults.kill_rounds import ACK_WAIT_S, Findings, Ledger, Load, kill_rounds
from tests.faults.killable import KillableServer
from tests.faults.load_clients import GONE, create
from tests.faults.load_shapes import Raw, memory_mib, open_files

GROWTH_MIB = 24
"""What the process may have gained at the end: segment indexes of the allocator, never something for each message."""
GROWTH_FILES = 8


async def bounded_load(server: KillableServer, client: str, seconds: float, number: int) -> None:
    """A spell of publishing and working, whose stream is purged afterwards, so that only leaks can add up."""
    load = Load(client, server.url, Ledger(), b"soak%d" % number)
    await load.run(seconds, lambda: None)
    raw = await Raw.open(server.port)
    await raw.api("STREAM.PURGE.FAULTS")
    await raw.close()


async def come_and_go(server: KillableServer, random: Random) -> None:
    """Streams, consumers, subscriptions and connections that are made and left again."""
    raw = await Raw.open(server.port)
    name = f"T{random.randrange(10**9)}"
    await raw.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
    for number in range(10):
        config = {"durable_name": f"c{number}", "ack_policy": "explicit"}
        await raw.api(f"CONSUMER.CREATE.{name}.c{number}", {"stream_name": name, "config": config})
        await raw.request(f"{name}.{number}", b"x" * 100)
    await raw.request(f"$JS.API.CONSUMER.MSG.NEXT.{name}.c1", b"1")
    await raw.api(f"CONSUMER.DELETE.{name}.c2")
    await raw.api(f"STREAM.DELETE.{name}")
    raw.writer.transport.abort()
    await raw.close()


def measured(server: KillableServer) -> tuple[float, int]:
    return memory_mib(server.process.pid), open_files(server.process.pid)


async def soak(seconds: float, crash_every_s: float) -> int:
    random = Random(1)
    findings = Findings()
    with KillableServer("jetlake") as server:
        await create(server.url, ACK_WAIT_S)
        started = time.monotonic()
        settled: tuple[float, int] | None = None
        next_crash = crash_every_s
        spells = 0
        while (passed := time.monotonic() - started) < seconds:
            spells += 1
            client = "jetlake" if spells % 2 else "nats-py"
            await bounded_load(server, client, 2.0, spells)
            for _ in range(3):
                await come_and_go(server, random)
            if passed > next_crash:
                next_crash += crash_every_s
                findings.add(await kill_rounds("jetlake", 1, random, clients=(client,)))
            if settled is None and passed > min(60.0, seconds / 3):
                settled = measured(server)
                sys.stdout.write(f"after {passed:.0f} s: {settled[0]:.1f} MiB, {settled[1]} open files\n")
        await asyncio.sleep(1)  # connections that were left are noticed
        memory, files = measured(server)
        settled = settled or (memory, files)
        is_alive = server.process.poll() is None
        defects = server.log.count("internal error")
    sys.stdout.write(f"at the end ({seconds:g} s, {spells} spells): {memory:.1f} MiB, {files} open files\n")
    sys.stdout.write(f"crashes: {findings}\n")
    problems = [
        text
        for text, is_bad in {
            "the server ended by itself": not is_alive,
            f"{defects} internal errors in the log": defects > 0,
            f"memory grew by {memory - settled[0]:.1f} MiB": memory > settled[0] + GROWTH_MIB,
            f"open files grew by {files - settled[1]}": files > settled[1] + GROWTH_FILES,
            f"{findings.losses} losses": findings.losses > 0,
        }.items()
        if is_bad
    ]
    sys.stdout.write("soak: ok\n" if not problems else f"soak: {'; '.join(problems)}\n")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="how long (default: %(default)s)")
    parser.add_argument("--crash-every", type=float, default=15, help="seconds between kills (default: %(default)s)")
    options = parser.parse_args()
    try:
        return asyncio.run(soak(options.seconds, options.crash_every))
    except GONE as error:
        sys.stdout.write(f"soak: the server went away under load: {error!r}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
