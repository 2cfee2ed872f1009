"""Plant small faults, one at a time, and see whether a world notices: `python -m tests.world.run_mutations --seeds 40`.

Each is a piece of the sources and what stands there instead; one whose piece is not found any more is an error. The
sources themselves stay as they are: worlds run on a copy.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

MUTATIONS = [
    ("server/shell/committer.py", "error = sync(syncable)", "error = None", "a sync is left out"),
    ("server/shell/engine_loop.py", "self._behind += self._had_share", "pass", "a connection's next turn is forgotten"),
    (
        "server/shell/engine_loop.py",
        "self._dirty.append(writer)",
        "self._dirty or self._dirty.append(writer)",
        "a writer is not flushed",
    ),
    ("server/shell/connection/peer_connection.py", "inbox.put_back(unhandled)", "pass", "frames that wait are dropped"),
    (
        "server/shell/connection/peer_connection.py",
        "            self._transport.resume_reading()",
        "            pass",
        "a paused connection is not read again",
    ),
    (
        "server/shell/connection/peer_connection.py",
        "transport.write(data if self.encrypt is None else self.encrypt(data))",
        "transport.write(data[:-1] if len(data) > 60000 else data)",
        "a long write loses a byte",
    ),
    (
        "server/shell/redo_commits.py",
        "self._is_failed = self._is_failed and not self._log.is_clean",
        "self._is_failed = True",
        "the redo log is never used again",
    ),
    (
        "server/engine/stream/publish.py",
        "        self.store.roll_back(error)",
        "        pass",
        "a rollback is left out",
    ),
    (
        "server/engine/consumer/priority.py",
        "if is_gone or not self._tracker.in_flight:",
        "if True:",
        "a pin moves at once",
    ),
    ("store/log/durability.py", "            self.cuts[-1]()", "            pass", "what a failed write left is kept"),
    (
        "store/redo/replay.py",
        "                disk.write(handle, data, part.offset)",
        "                pass",
        "the redo log is not replayed",
    ),
    (
        "store/log/recovery/findings.py",
        "mark.synced, 0 if reuses_sequences else mark.flushed)",
        "mark.synced)",
        "torn sequences are used again",
    ),
    (
        "store/log/recovery/recovery.py",
        "        self._has_hole = True",
        "        self._has_hole = False",
        "a mirror's hole is not told",
    ),
    (
        "client/publish/publish_window.py",
        "for reply in sorted(self._singles, key=self._number):",
        "for reply in ():",
        "a window is not sent again",
    ),
    (
        "client/publish/publish_window.py",
        "[reply for reply, message in self._singles.items() if not message.has_id]",
        "[]",
        "messages without ids are sent again",
    ),
    (
        "client/connection/server_link.py",
        "            self._closing = wire",
        "            pass",
        "close does not wait for the last bytes",
    ),
    (
        "client/connection/server_link.py",
        "self._reconnect_task = self._loop.create_task(self._reconnect())",
        "pass",
        "nobody reconnects",
    ),
    (
        "client/connection/pings.py",
        "        connection.abort(StaleConnectionError(",
        "        print(StaleConnectionError(",
        "a silent connection is kept",
    ),
    (
        "client/pull/pull_state.py",
        "    def reconnected(self, now: float) -> None:",
        "    def reconnected(self, now: float) -> None:\n        return",
        "pulls are not asked again after a reconnect",
    ),
    ("client/connection/wire_protocol.py", "resumed.set_result(None)", "pass", "a paused writer is not woken"),
    (
        "client/tables/data_loss.py",
        "before[1] if before is not None and is_back else info.ts",
        "info.ts",
        "the time of a look goes back",
    ),
    (
        "blocking/loop_thread.py",
        "                self._waiters.pop().release()",
        "                self._waiters.pop()",
        "a waiting thread is not woken",
    ),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=40, help="for each fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="those whose description has these words")
    arguments = parser.parse_args()
    unnoticed = []
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "static"))
        for path, piece, instead, what in MUTATIONS:
            if arguments.only not in what:
                continue
            source = copy / "src" / "jetlake" / path
            original = source.read_text()
            if piece not in original:
                sys.exit(f"{path} has no {piece!r} any more: plant {what!r} elsewhere")
            source.write_text(original.replace(piece, instead, 1))
            noticed = _notice(copy, arguments)
            source.write_text(original)
            print(f"| {what} | `{path}` | {noticed or 'nobody noticed'} |", flush=True)
            if not noticed:
                unnoticed.append(what)
    print(f"{len(unnoticed)} were not noticed: {unnoticed}")


def _notice(copy, arguments):
    """Return the first seed that notices, and how."""
    command = [sys.executable, "-m", "tests.world.run_world", "--first", "--seed", str(arguments.seed)]
    run = subprocess.run(
        [*command, "--seeds", str(arguments.seeds)], cwd=copy, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(copy / "src")},
    )  # fmt: skip
    if run.returncode == 0:
        return ""
    found = re.search(r"seed (\d+) FAILED", run.stdout)
    return f"seed {found[1]}" if found else "the import fails"


if __name__ == "__main__":
    main()
