"""Kill workers and the server of a Celery app, and count what its tasks did.

`python -m tests.integrations.celery.kills --kills 20 [--nats-server]` is the long run; the suite has a short one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jetlake.blocking
from jetlake.errors import JetlakeError
from jetlake.testing.ports import free_port

_BOUND_S = 300.0
# A task notes its end, at most this long after it was delivered.
_DELIVERED_BEFORE_S = 5.0


class Site:
    """A server and workers, each in processes of its own, that can be killed."""

    def __init__(self, folder: Path, *, nats_server: bool = False, workers: int = 2, pool: str = "prefork") -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"jetstream://127.0.0.1:{self.port}/kills"
        self.log = folder / "ran.txt"
        self.log.touch()
        program = [shutil.which("nats-server", path=str(Path(sys.executable).parent)), "-js"]
        self._serve = program if nats_server else [sys.executable, "-m", "jetlake", "serve"]
        self._serve += [
            "-a",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-sd",
            str(folder / "data"),
            "-l",
            str(folder / "server.log"),
        ]
        self.environment = {**os.environ, "CELERY_TEST_URL": self.url, "CELERY_TEST_LOG": str(self.log)}
        self._pool = pool
        self._killed_at: list[float] = []
        self._server: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes] | None] = [None] * workers

    def __enter__(self) -> Site:
        self.start_server()
        for index in range(len(self._workers)):
            self.start_worker(index)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            if worker is not None:
                os.killpg(worker.pid, 9)
                worker.wait()
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def start_server(self) -> None:
        self._server = subprocess.Popen(self._serve)

    def start_worker(self, index: int) -> None:
        command = [sys.executable, "-m", "celery", "-A", "tests.integrations.celery.shop", "worker", "-P", self._pool]
        with (self.folder / f"worker{index}.log").open("ab") as log:
            # Its own process group, so that its pool dies with it.
            self._workers[index] = subprocess.Popen(
                [*command, "-c", "2", "-n", f"w{index}@test", "-l", "INFO"],
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=Path(__file__).parents[3],
                start_new_session=True,
            )

    def kill_worker(self, index: int) -> None:
        """kill -9 of the worker and its pool, and start another."""
        worker = self._workers[index]
        assert worker is not None
        os.killpg(worker.pid, 9)
        worker.wait()
        self.start_worker(index)

    def kill_server(self) -> None:
        """kill -9 of the server, and start it again."""
        assert self._server is not None
        self._killed_at.append(time.time())
        self._server.kill()
        self._server.wait()
        self.start_server()

    def server_died_during(self, key: tuple[str, int]) -> bool:
        """Whether the server was killed between the first and the last delivery of one try of a task."""
        at = [at for name, _, retries, at in self.runs() if (name, retries) == key]
        return any(min(at) - _DELIVERED_BEFORE_S < killed < max(at) for killed in self._killed_at)

    def runs(self) -> list[tuple[str, bool, int, float]]:
        """What ran so far: name, redelivered, retries, when."""
        return [
            (name, redelivered == "1", int(retries), float(at))
            for name, redelivered, retries, at in (line.split() for line in self.log.read_text().splitlines())
        ]


def survive(site: Site, kills: int, tasks: int, seed: int = 1, wait_s: float = 0.05) -> dict[str, int]:
    """Send tasks while workers and server are killed, wait for all results, and verify what ran.

    Returns:
        how many tasks there were, how many were redelivered, how many ran more than once.
    """
    from celery import chord

    from tests.integrations.celery import shop

    dice = random.Random(seed)
    started = time.monotonic()
    results, parts = {}, set()
    at_kill = {tasks * (number + 1) // (kills + 1) for number in range(kills)}
    done_kills = Counter()
    for number in range(tasks):
        if number in at_kill:
            if dice.random() < 0.3 or (not done_kills["server"] and sum(done_kills.values()) == kills - 1):
                site.kill_server()
                done_kills["server"] += 1
            else:
                site.kill_worker(dice.randrange(len(site._workers)))
                done_kills["worker"] += 1
            time.sleep(dice.random() * 2)
        kind = number % 6
        if kind == 5:
            header = {f"{number}.{index}": index for index in range(3)}
            parts.update(f"part-{name}" for name in header)
            body = chord(shop.part.s(name, amount) for name, amount in header.items())(shop.total.s(number))
            results[f"total-{number}"] = body, 3
        elif kind == 3:
            results[f"third_time-{number}"] = (
                shop.third_time.apply_async((number,), priority=dice.choice([0, 5, 9])),
                number,
            )
        elif kind == 4:
            due = datetime.now(UTC) + timedelta(seconds=dice.random() * 5)
            results[f"at_time-{number}"] = shop.at_time.apply_async((number, due.timestamp()), eta=due), True
        else:
            result = shop.add.apply_async((number, 1, wait_s), priority=dice.choice([0, 5, 9]))
            results[f"add-{number}"] = result, number + 1
    for name, (result, expected) in results.items():
        try:
            found = result.get(timeout=max(1, _BOUND_S - (time.monotonic() - started)), interval=0.05)
        except TimeoutError:
            raise AssertionError(
                f"{name} ({result.id}) has no result; it ran: {[r for r in site.runs() if r[0] == name]}"
            ) from None
        assert found == expected, f"{name}: {found}"
    runs = site.runs()
    first = Counter((name, retries) for name, redelivered, retries, _ in runs if not redelivered)
    every = Counter((name, retries) for name, _, retries, _ in runs)
    assert {name for name, *_ in runs} == parts | set(results), "a task was lost"
    # Each run may ask for one retry, so a repeated run may repeat its retry.
    allowed = {(name, retries): every[name, retries - 1] if retries else 1 for name, retries in first}
    # A part of a chord that runs again may send the body of the chord again.
    for name in (name for name, _ in first if name.startswith("total-")):
        allowed[name, 0] = 1 + sum(every[f"part-{name[6:]}.{index}", 0] - 1 for index in range(3))
    # A server that is killed forgets its last deliveries, and counts the next one of the same message as the first.
    twice = {key for key, count in first.items() if count > allowed[key] and not site.server_died_during(key)}
    assert not twice, f"ran more than once without a redelivery: {sorted(twice)[:5]}"
    return {
        "tasks": len(results) + len(parts),
        "kills_of_workers": done_kills["worker"],
        "kills_of_the_server": done_kills["server"],
        "runs": len(runs),
        "redelivered": sum(1 for _, redelivered, *_ in runs if redelivered),
        "ran_more_than_once": sum(1 for count in every.values() if count > 1),
        "seconds": round(time.monotonic() - started),
    }


def state(site: Site) -> str:
    """What the server has of the queue, for a run that failed."""
    with jetlake.blocking.connect(f"nats://127.0.0.1:{site.port}") as client:
        stream = client.jetstream().stream("kills_celery")
        lines = [str(stream.info().state), *(str(stream.consumer_info(f"p{step}")) for step in (9, 6, 3, 0))]
        first, last = stream.info().state.first_seq, stream.info().state.last_seq
        for sequence in range(first, min(last, first + 50) + 1):
            try:
                message = stream.get(sequence)
            except JetlakeError:
                continue
            lines.append(f"{sequence} {message.subject} {dict(message.headers or {})}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nats-server", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Site(Path(folder), nats_server=given.nats_server) as site:
        os.environ.update(site.environment)
        try:
            outcome = survive(site, given.kills, given.tasks, given.seed)
        except BaseException:
            sys.stderr.write(state(site))
            for log in sorted(Path(folder).glob("*.log")):
                sys.stderr.write(f"== {log.name}\n" + "\n".join(log.read_text().splitlines()[-60:]) + "\n")
            raise
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
