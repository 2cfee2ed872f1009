"""Plant small faults, one at a time, and see who notices: `python -m tests.world.run_mutations --seeds 100`.

Asked are the unit tests of the module's folder, and worlds; `--ask seeds` asks worlds alone. Each fault is a piece of the sources and what stands there
instead; one whose piece is not found any more is an error. The sources themselves stay as they are: a copy is run.
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
_TEST_S = 60
"""How long a unit test may take under a fault."""

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
        "transport.write(data[:40000] + data[40001:])",
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
        "        self._store.roll_back(error)",
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
        "max(times, key=parse_time)",
        "info.ts",
        "the time of a look goes back",
    ),
    (
        "blocking/loop_thread.py",
        "                self._waiters.pop().release()",
        "                self._waiters.pop()",
        "a waiting thread is not woken",
    ),
    ("server/shell/leaf/connection.py", "self.writer.send(PONG)", "pass", "a leaf node's ping is not answered"),
    (
        "server/shell/leaf/dialer.py",
        "            while True:",
        "            for _ in range(1):",
        "a hub is dialled once",
    ),
    (
        "server/shell/leaf/leaf_nodes.py",
        "await hang_up_all(self.sockets)",
        "pass",
        "sockets of leaf nodes outlive a stop",
    ),
    (
        "server/shell/connection_table.py",
        "await hang_up_all(self._sockets)",
        "pass",
        "sockets of clients outlive a stop",
    ),
    (
        "server/engine/sourcing/receiver.py",
        "        if number != self._delivered + 1:",
        "        if False:",
        "a copy overlooks a delivery that is missing",
    ),
    (
        "server/engine/sourcing/receiver.py",
        "        if now_ns - self._heard_ns >= _SILENCE_NS:",
        "        if False:",
        "a copy waits for a silent origin",
    ),
    (
        "server/engine/stream/publish.py",
        "sequence = find(message_id) or sequences.get(message_id)",
        "sequence = sequences.get(message_id)",
        "a run forgets the ids of stored messages",
    ),
    (
        "server/engine/schedule/schedules.py",
        "                self._due.pop(subject, None)",
        "                pass",
        "a schedule outlives the message that replaces it",
    ),
    (
        "server/engine/schedule/schedules.py",
        "        while sequence <= store.last_sequence:",
        "        while False:",
        "schedules behind the saved index are not read",
    ),
    (
        "server/engine/consumer/ack_handler.py",
        "            self._confirm(reply)",
        '            self._account.publish(reply, b"", b"", b"")',
        "an ack is confirmed before it is on disk",
    ),
    (
        "server/engine/core/commit.py",
        "                hold.is_marked = True",
        "                pass",
        "a held journal is not flushed",
    ),
    (
        "server/engine/core/commit.py",
        "            if (hold := self._held.get(syncable)) is not None:\n                # sometimes: a journal waits for the log of its stream\n                hold.is_marked = True\n                continue\n",
        "",
        "a journal does not wait for its stream's log",
    ),
    (
        "server/engine/api/api.py",
        "        if waiting is not None:",
        "        if False:",
        "requests about a stream overtake each other",
    ),
    (
        "client/publish/fast_publisher.py",
        "self.acknowledged, self._interval = answer.seq, answer.msgs",
        "self.acknowledged, self._interval = self.published, answer.msgs",
        "a fast batch counts what was sent as acknowledged",
    ),
    (
        "client/ordered/ordered.py",
        "        if self.ordered.gap is None:\n            return good, NextStep.PULL",
        "        if True:\n            return good, NextStep.PULL",
        "an ordered read goes on over a gap",
    ),
    (
        "client/groups/member.py",
        "            if not await self._has(message):",
        "            if False:",
        "a member handles whatever it once got",
    ),
    (
        "client/tables/range_reader.py",
        "next_sequence = int(messages.sequence[-1]) + 1",
        "next_sequence = int(messages.sequence[-1])",
        "a range is read from its last message again",
    ),
    (
        "spark/source/driver.py",
        "            self._watch.ask(lambda api: release(api, how, stream, self._options, before))",
        "            pass",
        "committed messages are not released",
    ),
    (
        "spark/sink/publisher.py",
        "            for chunk in self.open:\n                chunk.ask_by_row(self.inbox)",
        "            self.open.clear()",
        "rows that were open when a connection broke are dropped",
    ),
    (
        "spark/sink/publisher.py",
        "            self._await(self._options.window, _OPEN_BYTES_MAX, unsent=1)\n            self._connection.send(chunk.frames.data)\n        self._await(0, 0)",
        "            self._await(self._options.window, _OPEN_BYTES_MAX, unsent=1)\n            self._connection.send(chunk.frames.data)",
        "a task does not wait for the last rows",
    ),
    (
        "client/migration/gate.py",
        "        if not is_closed(config):\n            await",
        "        if False:\n            await",
        "a stream that moves stays open",
    ),
    (
        "client/connection/requests.py",
        "                self._repeat(reply, frame)",
        "                pass",
        "requests are not repeated",
    ),
    (
        "client/connection/connection.py",
        "            transport.resume_reading()",
        "            pass",
        "a client that paused does not read again",
    ),
    (
        "client/kv/bucket.py",
        '"expected_last_subject_sequence": revision',
        '"expected_last_subject_sequence": None',
        "a key is updated whatever its revision is",
    ),
    (
        "server/engine/consumer/priority.py",
        '        if self._store.id:\n            self._store.set("", 0, _do_nothing)\n        # Also',
        "        # Also",
        "the pin that was taken stays on disk",
    ),
    (
        "server/engine/batch/atomic_batches.py",
        "if sequence != len(batch.messages) + 1 or",
        "if",
        "a batch may have holes",
    ),
    (
        "server/engine/consumer/flow_control.py",
        '        self.pending = max(self.pending - self._covered, 0)\n        self.outstanding = b""',
        "        self.pending = max(self.pending - self._covered, 0)",
        "flow control asks once",
    ),
    (
        "client/pull/pull_state.py",
        "        self.is_connected = True\n",
        "",
        "a pull does not know that it is connected again",
    ),
    (
        "server/engine/stream/publish.py",
        "self._store.roll_back(error)",
        "self._store.roll_back(error) if self._store.last_sequence % 2 else None",
        "every other rollback is left out",
    ),
    (
        "server/shell/engine_loop.py",
        "            again = again or engine.has_ready()",
        "            pass",
        "consumers that are ready wait for the next event",
    ),
    (
        "server/shell/engine_loop.py",
        "(self._timer is not None and self._timer_deadline_ns <= deadline_ns)",
        "self._timer is not None",
        "a timer that is due earlier is overlooked",
    ),
    (
        "server/shell/engine_loop.py",
        "            if reader.read_on():\n                behind.append(reader)",
        "            reader.read_on()",
        "a connection's third turn is forgotten",
    ),
    (
        "server/shell/engine_loop.py",
        "            self.engine.wake_congested()",
        "            pass",
        "deliveries to a connection that was congested are forgotten",
    ),
    (
        "server/shell/connection/peer_connection.py",
        "        if self._output:\n            self.flush()\n        elif self._subscriber.congested:",
        "        if self._subscriber.congested:",
        "what waited for a full socket stays queued",
    ),
    (
        "server/shell/connection/connection.py",
        "        self._subscriptions.close()\n",
        "",
        "subscriptions outlive their connection",
    ),
    (
        "server/shell/leaf/link.py",
        "        return self._forget(list(remotes.values()))",
        "        return self._forget([])",
        "the interest of a leaf node outlives its link",
    ),
    (
        "server/shell/committer.py",
        "        while any(self._busy) or (redo is not None and redo.is_busy):",
        "        while False:",
        "a stop does not wait for the syncs",
    ),
    (
        "store/redo/redo_log.py",
        "                if store.needs_checkpoint():",
        "                if False:",
        "a file of the redo log is used again before its streams are synced",
    ),
    (
        "client/connection/server_link.py",
        "        if not is_first:\n            self._wake()\n        if self.wire is wire:",
        "        if self.wire is wire:",
        "who waits for a connection is not woken",
    ),
    (
        "client/connection/connection.py",
        "        self._pings.start()\n        if not is_first:",
        "        if is_first:\n            self._pings.start()\n        else:",
        "no pings are sent after a reconnect",
    ),
    (
        "client/connection/requests.py",
        '        self._fail_all("the connection was lost while waiting for an answer")\n',
        "",
        "requests of a lost connection never end",
    ),
    (
        "client/pull/pull_state.py",
        "        self._over(status)\n        return PullOutcome.ENDED",
        "        return PullOutcome.ENDED",
        "a pull that has ended still counts",
    ),
    (
        "client/pull/continuous_pull.py",
        "        if not self.state.missed_heartbeat(now):\n            self.refill()",
        "        if not self.state.missed_heartbeat(now):\n            pass",
        "a pull that was put off is not asked again",
    ),
    (
        "client/ordered/ordered.py",
        "        return not info.num_waiting or self.ordered.has_more_than(info)",
        "        return False",
        "an ordered read trusts in pulls that are lost",
    ),
    (
        "client/subscribe/push_status.py",
        "        if self._expected and received > self._expected:",
        "        if False:",
        "a push subscription overlooks a gap",
    ),
    (
        "spark/sink/writer.py",
        "            written = self._publish(map(digest.add, rows))\n            ledger.add_task(task, self._attempt, str(digest))\n            return written",
        "            messages = list(map(digest.add, rows))\n            ledger.add_task(task, self._attempt, str(digest))\n            return self._publish(iter(messages))",
        "a task is noted as written before it is",
    ),
    (
        "client/connection/outbox.py",
        "        self._forget_kept()\n        self.end_turn()\n        return dropped",
        "        self.end_turn()\n        return dropped",
        "what was kept is sent on every later connection",
    ),
    (
        "client/connection/outbox.py",
        "for key, frame in self._kept.items() if not _reply(frame).startswith(inbox)",
        "for key, frame in self._kept.items()",
        "a window's kept messages are sent besides",
    ),
    (
        "client/kv/bucket.py",
        "            revision = entry.revision if entry is not None else 0\n",
        "            revision = 0\n",
        "a deleted key is not created again",
    ),
    (
        "client/migration/gate.py",
        "                if proposed in (None, stored):\n                    return stored",
        "                return stored",
        "a closed stream is copied before its last messages are stored",
    ),
    (
        "blocking/send_queue.py",
        "        if not entered.cancelled():\n            self.flush()",
        "        pass",
        "what waits behind a message for a full window stays there",
    ),
    (
        "client/objects/catalog.py",
        "                # After a lost answer the object may be visible, so its chunks stay.\n                if not lost_answers:",
        "                if True:",
        "an object whose answer was lost loses its content",
    ),
    (
        "client/objects/catalog.py",
        '{"Nats-Msg-Id": info.nuid}',
        "None",
        "an object is stored a second time after a lost answer",
    ),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=40, help="for each fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="those whose description has these words")
    parser.add_argument("--place", type=int, default=1, help="the first to plant, counted from 1")
    parser.add_argument("--under", default="", help="those in modules under these folders, with commas between them")
    parser.add_argument("--parts", default="", help="ask only the seeds whose worlds have these parts")
    parser.add_argument("--tests", default="", help="ask these tests instead of the unit tests of the module's folder")
    parser.add_argument("--ask", choices=("both", "tests", "seeds"), default="both", help="who is asked")
    arguments = parser.parse_args()
    unnoticed = []
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        for name in ("src", "tests"):
            shutil.copytree(
                ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "static", "node_modules")
            )
        shutil.copy(ROOT / "pyproject.toml", copy)
        for path, piece, instead, what in MUTATIONS[arguments.place - 1 :]:
            if arguments.only not in what or not path.startswith(tuple(arguments.under.split(","))):
                continue
            source = copy / "src" / "jetlake" / path
            original = source.read_text()
            if piece not in original:
                sys.exit(f"{path} has no {piece!r} any more: plant {what!r} elsewhere")
            source.write_text(original.replace(piece, instead, 1))
            test = _notice_by_test(copy, path, arguments.tests.split()) if arguments.ask != "seeds" else ""
            seed = _notice_by_seed(copy, arguments) if arguments.ask != "tests" else ""
            source.write_text(original)
            print(f"| {what} | `{path}` | {test or '-'} | {seed or '-'} |", flush=True)
            if not test and not seed:
                unnoticed.append(what)
    print(f"{len(unnoticed)} were not noticed: {unnoticed}")


def _notice_by_test(copy, path, tests):
    """Return the first of these tests, or of the unit tests of the module's folder, that notices."""
    tests = tests or [copy / "tests" / "unit" / Path(path).parent]
    if not (copy / tests[0]).exists():
        return ""
    pytest = [sys.executable, "-m", "pytest"]
    try:
        run = subprocess.run(
            # A test that hangs may hang in what cleans up after it too: its process is ended.
            [*pytest, "-q", "-x", "-p", "no:cacheprovider", f"--timeout={_TEST_S}", "--timeout-method=thread", *tests],
            cwd=copy, capture_output=True, text=True, check=False, timeout=20 * _TEST_S,
            env={**os.environ, "PYTHONPATH": str(copy / "src")},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "a test that times out"
    if "Timeout" in run.stdout + run.stderr:
        return "a test that times out"
    found = re.search(r"(?:FAILED|ERROR) \S*::(\w+)", run.stdout)
    return f"`{found[1]}`" if found else ""


def _notice_by_seed(copy, arguments):
    """Return the first seed that notices."""
    command = [sys.executable, "-m", "tests.world.run_world", "--first", "--seed", str(arguments.seed)]
    run = subprocess.run(
        [*command, "--seeds", str(arguments.seeds), "--parts", arguments.parts], cwd=copy, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(copy / "src")},
    )  # fmt: skip
    if run.returncode == 0:
        return ""
    found = re.search(r"seed (\d+) FAILED", run.stdout)
    return f"seed {found[1]}" if found else "the import fails"


if __name__ == "__main__":
    main()
