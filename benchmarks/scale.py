"""What does a stream of many millions of messages cost: memory, restart, and every question asked of it?

    python benchmarks/scale.py [--quick] [--messages N] [--subjects N] [--only jetlake|nats-server] [--json FILE]

A stream in files gets 100 million messages of 128 bytes (quick: 10 million) over 1,000 subjects, from one client that
has 8,000 of them under way at a time and reads 250 at both ends of the stream after every 800,000. A tenth of the way,
and at the end, the server is asked for single messages at both ends and in between, for the last one of a subject, for
the next one of a subject after a sequence, for the stream's info, and to purge a subject; the growth of each question
is its median at the end by that at the tenth, so that 1 is constant. Then the server is killed, started, stopped and
started: the CPU time up to the answer that all messages are there counts. Both servers sync as they do by default, ours
before every answer and nats-server every two minutes; at last both are started with `sync_interval: always`, and asked
to purge a subject once more. The disk needs 200 bytes a message. Ratios
above 1 say that ours is better than nats-server's, or, for growth, that ours grows less. Publishing and questions are
cut into three rounds, whose spread is told beside the CPU time of the server a message or a question.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from _harness import Report, Sample, cpu_s, parse_arguments, take_sample, wall_s
from _raw_client import RawClient
from _servers import KINDS, OURS, PEER, Running, server

QUESTION = "What does a stream of many millions of messages cost?"
COUNT = 100_000_000
COUNT_QUICK = 10_000_000
SUBJECTS = 1_000
PAYLOAD = b"x" * 128
RUN = 8_000
ACK = b"MSG _INBOX.b.p 1 "
QUESTIONS = 60
ROUNDS = 3
READ = 250
API = "$JS.API."
STREAM = "SCALE"
MIB = 1024 * 1024


class Growing:
    """A stream that is published to and asked, on one server."""

    def __init__(self, running: Running, subjects: int) -> None:
        self.pid = running.pid
        self.client = RawClient(running.port)
        self.rss_max = 0.0
        self._asked_at = 0
        self._sent = 0
        self._subjects = subjects
        self._random = random.Random(1)
        self._order = order = [number * 7919 % subjects for number in range(-(-subjects // RUN) * RUN)]
        lines = [b"PUB s.%d _INBOX.b.p %d\r\n%b\r\n" % (number, len(PAYLOAD), PAYLOAD) for number in order]
        # With an answer to whatever PING has come meanwhile.
        self._runs = [b"PONG\r\n" + b"".join(lines[at : at + RUN]) for at in range(0, len(lines), RUN)]

    def create(self) -> None:
        """Create the stream."""
        config = {"name": STREAM, "subjects": ["s.*", "purge.*"], "storage": "file", "duplicate_window": 100_000_000}
        self.client.request(f"{API}STREAM.CREATE.{STREAM}", config)
        consumer = {"durable_name": "front", "ack_policy": "none", "max_deliver": -1}
        self.client.request(f"{API}CONSUMER.DURABLE.CREATE.{STREAM}.front", {"stream_name": STREAM, "config": consumer})

    def publish(self, count: int) -> list[Sample]:
        """Publish so many messages, in as many parts as there are rounds; messages a second."""
        part = count // ROUNDS // RUN * RUN
        parts = [part] * (ROUNDS - 1) + [count - part * (ROUNDS - 1)]
        return [take_sample(self.pid, part, partial(self._publish, part)) for part in parts]

    def _publish(self, count: int) -> float:
        started = time.perf_counter()
        for at in range(0, count, RUN):
            # nats-server buffers 10,000 messages and drops what comes beyond.
            self.client.send_and_count([self._runs[self._sent % len(self._runs)]], ACK, RUN)
            self._sent += 1
            if at % (100 * RUN) == 0:
                self._read_at_both_ends()
                self.rss_max = max(self.rss_max, rss_mib(self.pid))
        return count / (time.perf_counter() - started)

    def _read_at_both_ends(self) -> None:
        """Pull the next messages of a consumer that began with the first, and get the newest."""
        body = b'{"batch":%d}' % READ
        pull = b"PUB %bCONSUMER.MSG.NEXT.%b.front _INBOX.b.m %d\r\n" % (API.encode(), STREAM.encode(), len(body))
        self.client.send_and_count([pull + body + b"\r\n"], b" $JS.ACK.", READ)
        last = self.client.request(f"{API}STREAM.INFO.{STREAM}")["state"]["last_seq"]  # type: ignore[index]
        self.client.requests([(f"{API}STREAM.MSG.GET.{STREAM}", {"seq": last - back}) for back in range(READ)])

    def settle(self, count: int) -> None:
        """Wait until the stream shows all messages."""
        while self.client.request(f"{API}STREAM.INFO.{STREAM}")["state"]["messages"] < count:  # type: ignore[index]
            time.sleep(0.05)

    def ask(self, last: int, mark: str) -> dict[str, list[Sample]]:
        """The median milliseconds of each question in each round, with so many messages in the stream."""
        get = f"{API}STREAM.MSG.GET.{STREAM}"
        pick = self._random.randint

        def last_of_subject() -> dict[str, object]:
            return {"last_by_subj": f"s.{self._order[pick(0, last - 1) % len(self._order)]}"}

        def next_of_subject() -> dict[str, object]:
            place = pick(0, last - 1)
            first = max(place + 1 - pick(0, self._subjects), 1)
            return {"seq": first, "next_by_subj": f"s.{self._order[place % len(self._order)]}"}

        def anywhere() -> int:
            # Where the first questions were asked, their messages were purged.
            sequence = pick(1, last)
            return sequence + QUESTIONS if 0 < sequence - self._asked_at <= QUESTIONS else sequence

        self._publish_for_purge(mark)
        questions = {
            "get at both ends": lambda number: (get, {"seq": number + 1 if number % 2 else last - number}),
            "get anywhere": lambda _: (get, {"seq": anywhere()}),
            "last by subject": lambda _: (get, last_of_subject()),
            "next by subject": lambda _: (get, next_of_subject()),
            "info": lambda _: (f"{API}STREAM.INFO.{STREAM}", None),
            "purge by subject": partial(_purge, mark),
        }
        found: dict[str, list[Sample]] = {}
        self.settle(last + QUESTIONS)
        for name, question in questions.items():
            found[name] = self._ask(question)
            self.rss_max = max(self.rss_max, rss_mib(self.pid))
        self._asked_at = last
        return found

    def purge(self) -> list[Sample]:
        """The median milliseconds of a purge of one subject in each round, on a server that was started again."""
        before = self.client.request(f"{API}STREAM.INFO.{STREAM}")["state"]["messages"]  # type: ignore[index]
        self._publish_for_purge("c")
        self.settle(before + QUESTIONS)
        return self._ask(partial(_purge, "c"))

    def _publish_for_purge(self, mark: str) -> None:
        lines = [b"PUB purge.%b%d 1\r\nx\r\n" % (mark.encode(), number) for number in range(QUESTIONS)]
        self.client.socket.sendall(b"".join(lines))

    def _ask(self, question: Callable[[int], tuple[str, object]]) -> list[Sample]:
        each = QUESTIONS // ROUNDS
        calls = [question(number) for number in range(QUESTIONS)]
        parts = [calls[at : at + each] for at in range(0, QUESTIONS, each)]
        return [take_sample(self.pid, each, partial(self._median_ms, part)) for part in parts]

    def _median_ms(self, calls: list[tuple[str, object]]) -> float:
        return statistics.median(wall_s(partial(self.client.request, *call)) for call in calls) * 1000


def _purge(mark: str, number: int) -> tuple[str, object]:
    return f"{API}STREAM.PURGE.{STREAM}", {"filter": f"purge.{mark}{number}"}


def rss_mib(pid: int) -> float:
    """The memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / MIB


def restart(kind: str, folder: Path, count: int) -> tuple[float, float]:
    """CPU seconds and MiB of memory of a start, up to the answer that all messages are there."""
    with server(kind, kept=folder) as running:
        client = RawClient(running.port)
        state = client.request(f"{API}STREAM.INFO.{STREAM}")["state"]
        figures = cpu_s(running.pid), rss_mib(running.pid)
        # nats-server does not write at once what it shows.
        if not count >= state["messages"] >= (count if kind == OURS else 0.99 * count):  # type: ignore[index]
            raise SystemExit(f"{kind} has {state} instead of {count} messages")
        client.close()
    return figures


def restart_empty(kind: str) -> float:
    """CPU seconds of a start with one stream that has no message: what is not the messages' share of a restart."""
    with tempfile.TemporaryDirectory(prefix="jetlake-bench-") as name:
        folder = Path(name)
        with server(kind, kept=folder) as running:
            Growing(running, 1).create()
        return statistics.median(restart(kind, folder, 0)[0] for _ in range(ROUNDS))


class Findings(NamedTuple):
    """What was found out about one server."""

    rounds: dict[str, list[Sample]]
    """What was measured in several rounds, with its CPU time."""
    single: dict[str, float]
    """What was measured once."""


def run(kind: str, count: int, subjects: int) -> Findings:
    """All figures of one server."""
    folder = Path(tempfile.mkdtemp(prefix="jetlake-bench-"))
    rounds: dict[str, list[Sample]] = {}
    single: dict[str, float] = {}
    tenth = count // 10 // RUN * RUN
    try:
        with server(kind, kept=folder) as running:
            growing = Growing(running, subjects)
            growing.create()
            used_s = cpu_s(running.pid)
            first = growing.publish(tenth)
            early = growing.ask(tenth, "a")
            growing.publish(count - 2 * tenth)
            latest = growing.publish(tenth)
            single["publish CPU, us a message"] = (cpu_s(running.pid) - used_s) / count * 1e6
            rounds["publish at first, messages/s"], rounds["publish at last, messages/s"] = first, latest
            single["publish growth"] = _median(first) / _median(latest)
            late = growing.ask(count, "b")
            for name, samples in late.items():
                rounds[f"{name}, ms"] = samples
                single[f"{name} growth"] = _median(samples) / _median(early[name])
            single["memory at most, MiB"] = growing.rss_max
            single["memory at the end, MiB"] = rss_mib(running.pid)
            growing.settle(count)
            os.kill(running.pid, signal.SIGKILL)
        single["restart after kill, CPU s"], single["memory after restart, MiB"] = restart(kind, folder, count)
        single["restart after stop, CPU s"] = statistics.median(restart(kind, folder, count)[0] for _ in range(ROUNDS))
        with server(kind, "always", kept=folder) as running:
            rounds["purge by subject synced, ms"] = Growing(running, subjects).purge()
        single["restart with an empty stream, CPU s"] = restart_empty(kind)
        single["disk, bytes a message"] = sum(path.stat().st_size for path in folder.rglob("*")) / count
    finally:
        shutil.rmtree(folder)
    return Findings(rounds, single)


def _median(samples: list[Sample]) -> float:
    return statistics.median(sample.value for sample in samples)


def main() -> None:
    extra = [
        ("--messages", {"type": int, "help": "how many messages instead of 100 (quick: 10) million"}),
        ("--subjects", {"type": int, "default": SUBJECTS, "help": "how many subjects they have"}),
        ("--only", {"choices": (OURS, PEER), "help": "measure this server alone"}),
    ]
    arguments = parse_arguments(QUESTION, *extra)
    count = (arguments.messages or (COUNT_QUICK if arguments.quick else COUNT)) // RUN * RUN
    report = Report(QUESTION, arguments)
    found: dict[str, Findings] = {}
    for kind in [arguments.only] if arguments.only else KINDS:
        found[kind] = run(kind, count, arguments.subjects)
        print(f"{kind}: {found[kind]}", file=sys.stderr, flush=True)
    one = next(iter(found.values()))
    for name in one.rounds:
        rounds = {kind: findings.rounds[name] for kind, findings in found.items()}
        is_time = not name.endswith("messages/s")
        report.add_samples(f"{name} ({count:,})", ratio_name(name), rounds, lower_is_better=is_time)
    for name in one.single:
        figures = {kind: findings.single[name] for kind, findings in found.items()}
        report.add_figures(f"{name} ({count:,})", ratio_name(name), figures, lower_is_better=True)
    report.finish()


def ratio_name(case: str) -> str:
    return case.partition(",")[0].replace(" ", "-")


if __name__ == "__main__":
    main()
