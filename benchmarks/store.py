"""What do the store's operations cost, and do they cost the same when the stream is long?

    python benchmarks/store.py [--quick] [--json FILE]

No server takes part: the store is called in this process, and the times are CPU times themselves.
Growth ratios compare a short stream with a long one (above 1: the long one is quicker); the restart ratio compares a
start from the index with a start from the log. Times are the process's own CPU seconds, so that a busy machine matters
little.
"""

from __future__ import annotations

import gc
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _harness import Report, measure, parse_arguments
from jetlake.store.file_store import FileStore
from jetlake.store.files.disk import RealDisk
from jetlake.store.memory_store import MemoryStore
from jetlake.store.message_store import MessageStore
from jetlake.store.subject_filter import SubjectFilter

PAYLOAD = b"x" * 128
FLUSH_EVERY = 512
SHORT = 10_000
SUBJECTS = 1_000
OPERATIONS = 2_000
RUN_MESSAGES = 512

QUESTION = "What does the store cost per message, and does it grow with the stream?"


def main() -> None:
    """Measure and report."""
    arguments = parse_arguments(QUESTION, ("--child", {"nargs": "+", "help": "used by the benchmark itself"}))
    if arguments.child:
        run_child(*arguments.child)
        return
    long = 1_000_000 if arguments.quick else 10_000_000
    repeats = 5 if arguments.quick else 9
    report = Report(QUESTION, arguments)
    folder = Path(tempfile.mkdtemp(prefix="jetlake-bench-"))
    try:
        compare_lengths(report, folder, long, repeats)
        for subjects in (1, long // 10):
            measure_memory_and_restart(report, folder, long, subjects)
    finally:
        shutil.rmtree(folder)
    report.finish()


def compare_lengths(report: Report, folder: Path, long: int, repeats: int) -> None:
    """The same operations on a short and on a long stream, in turns."""
    stores: dict[str, MessageStore] = {}
    for count in (SHORT, long):
        stores[f"{count:,}"] = filled_store(folder / f"growth-{count}", count)
    memory = MemoryStore()
    fill(memory, SHORT, SUBJECTS)
    for name, operation, size in (
        ("append", append, OPERATIONS),
        ("read a run", read_runs, OPERATIONS * 4),
        ("read ten messages of one subject", read_filtered, OPERATIONS),
        ("get by sequence", get, OPERATIONS),
        ("get anywhere", get_anywhere, OPERATIONS),
        ("last by subject", last, OPERATIONS),
        ("stream info", info, OPERATIONS),
        ("remove in any order", remove, OPERATIONS),
    ):
        candidates = {column: bind(operation, store) for column, store in stores.items()}
        candidates["memory store"] = bind(operation, memory)
        seconds = measure(candidates, repeats, clock=time.process_time)
        microseconds = {column: value / size * 1e6 for column, value in seconds.items()}
        report.add(f"{name}, us", {**microseconds, "spread %": seconds.spread})
        short, big = (seconds[column] for column in stores)
        report.compare(f"growth {name}", big, short, lower_is_better=True)
    for store in stores.values():
        store.close()
        store.delete()


def filled_store(path: Path, count: int) -> FileStore:
    """A store after a restart: nothing of it in memory but the index, and every file looked at once.

    Otherwise much of the short stream would be the newest data, which needs no read at all.
    """
    store = FileStore(RealDisk(), path)
    fill(store, count, SUBJECTS)
    store.close()
    store = FileStore(RealDisk(), path)
    while store.compact_step():
        pass
    return store


def bind(operation: Callable[[MessageStore], None], store: MessageStore) -> Callable[[], None]:
    return lambda: operation(store)


def fill(store: MessageStore, count: int, subjects: int) -> None:
    names = [b"orders.%d" % number for number in range(subjects)]
    for number in range(count):
        store.append(names[number % subjects], b"", PAYLOAD, number)
        if number % FLUSH_EVERY == 0:
            store.flush()
    store.flush()
    store.sync()


def append(store: MessageStore) -> None:
    for number in range(OPERATIONS):
        store.append(b"orders.1", b"", PAYLOAD, 10**9)
        if number % FLUSH_EVERY == 0:
            store.flush()
    store.flush()


def read_runs(store: MessageStore) -> None:
    at = store.first_sequence + store.messages // 4
    for _ in range(OPERATIONS * 4 // RUN_MESSAGES):
        at = store.read(at, None, RUN_MESSAGES, 1 << 20).next_sequence


def read_filtered(store: MessageStore) -> None:
    picks = random.Random(1)
    for _ in range(OPERATIONS // 10):
        name = b"orders.%d" % picks.randrange(2, SUBJECTS)
        store.read(1, SubjectFilter((name,)), 10, 1 << 20)


def get(store: MessageStore) -> None:
    """The same messages in each stream, so that only the work of the store differs."""
    picks = random.Random(2)
    for _ in range(OPERATIONS):
        store.get(picks.randrange(1, SHORT))


def get_anywhere(store: MessageStore) -> None:
    """Messages from all over the stream: the misses of the machine's caches come on top."""
    picks = random.Random(5)
    for _ in range(OPERATIONS):
        store.get(picks.randrange(1, store.last_sequence - 3 * OPERATIONS))


def last(store: MessageStore) -> None:
    picks = random.Random(3)
    for _ in range(OPERATIONS):
        store.last_sequence_for(b"orders.%d" % picks.randrange(2, SUBJECTS))


def info(store: MessageStore) -> None:
    for _ in range(OPERATIONS):
        _ = (
            store.first_sequence,
            store.last_sequence,
            store.first_time_ns,
            store.last_time_ns,
            store.messages,
            store.bytes,
            store.subject_count,
            store.deleted_count,
        )


def remove(store: MessageStore) -> None:
    """Acknowledge the newest messages of a work queue in any order."""
    for _ in range(OPERATIONS):
        store.append(b"jobs", b"", PAYLOAD, 10**9)
    newest = list(range(store.last_sequence - OPERATIONS + 1, store.last_sequence + 1))
    random.Random(4).shuffle(newest)
    for sequence in newest:
        store.remove(sequence)
    store.flush()


# Memory and restart, each in a process of its own


def measure_memory_and_restart(report: Report, folder: Path, count: int, subjects: int) -> None:
    """How much memory the index takes, and how long a start takes with it and without it."""
    path = folder / f"restart-{subjects}"
    written = child("write", path, count, subjects)
    quick = child("open", path, count, subjects)
    (path / "index").unlink()
    by_pieces = child("open", path, count, subjects)
    for index_file in (path / "index", *path.glob("*.idx")):
        index_file.unlink(missing_ok=True)
    scan = child("open", path, count, subjects)
    case = f"{count:,} messages, {subjects:,} subject{'s' if subjects > 1 else ''}"
    report.add(f"{case}: index memory, bytes a message", {"written": written[1], "opened": quick[1]})
    report.add(
        f"{case}: start, s", {"after a clean stop": quick[0], "from pieces": by_pieces[0], "from the log": scan[0]}
    )
    name = "one subject" if subjects == 1 else "many subjects"
    report.compare(f"restart {name}", quick[0], scan[0], lower_is_better=True)
    report.compare(f"memory {name} against its limit", written[1], 60 if subjects == 1 else 120, lower_is_better=True)
    shutil.rmtree(path)


def child(*task: object) -> tuple[float, float]:
    """Run a task in a process of its own; CPU seconds and bytes of memory a message."""
    command = [sys.executable, __file__, "--child", *map(str, task)]
    seconds, size = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(size)


def run_child(task: str, path: str, count: str, subjects: str) -> None:
    """One task, in this process."""
    gc.collect()
    before = resident_bytes()
    started = time.process_time()
    store = FileStore(RealDisk(), Path(path))
    if task == "write":
        fill(store, int(count), int(subjects))
        while store.compact_step():
            pass
    seconds = time.process_time() - started
    gc.collect()
    print(seconds, (resident_bytes() - before) / int(count))
    store.close()


def resident_bytes() -> int:
    """How much memory the process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    main()
