"""What is lost when a server is killed or its files are damaged, beside nats-server?

    python benchmarks/durability.py [--quick] [--rounds N] [--json FILE] [--seed N]

Each round puts load on a server (eight publishers, and two workers that wait for the answer to every acknowledgement;
our client and nats-py in turns), kills it with SIGKILL at a random moment, starts it again, and compares what it had
promised with what it has: messages that it had acknowledged, acknowledgements that it had confirmed, sequences. Ours,
nats-server as it comes, and nats-server with `sync_interval: always` run the same rounds. Clients are killed too. Then
one byte of a message file is flipped, or the newest file loses the end of its last record, while the server is down.

The ratios are the losses of nats-server for each of ours, with one added on both sides since ours are zero. Counts have
no spread. The CPU time is that of the servers under load, up to the kill, for each message with its acknowledgement.
The exit status is 1 when ours lost anything.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from _harness import Report, parse_arguments

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults.damage import damage_rounds
from tests.faults.kill_rounds import client_kill_rounds, kill_rounds
from tests.faults.killable import KINDS

QUESTION = "What is lost when a server is killed or its files are damaged?"


class Figure(NamedTuple):
    """A row of the table: where its number comes from, and whether it has to be zero."""

    case: str
    part: str
    field: str
    is_loss: bool = False


FIGURES = [
    Figure("server killed: rounds", "server", "rounds"),
    Figure("server killed: messages acknowledged", "server", "acknowledged"),
    Figure("server killed: lost", "server", "lost", True),
    Figure("server killed: stored twice", "server", "stored_twice", True),
    Figure("server killed: never delivered", "server", "never_delivered", True),
    Figure("server killed: sequences reused", "server", "reused", True),
    Figure("server killed: acks confirmed", "server", "confirmed"),
    Figure("server killed: pending again", "server", "pending_again", True),
    Figure("client killed: rounds", "client", "rounds"),
    Figure("client killed: messages acknowledged", "client", "acknowledged"),
    Figure("client killed: acks confirmed", "client", "confirmed"),
    Figure("client killed: losses of any kind", "client", "losses", True),
    Figure("byte flipped: experiments", "damage", "flips"),
    Figure("byte flipped: records hit, and gone", "damage", "hit"),
    Figure("byte flipped: other records lost", "damage", "lost", True),
    Figure("byte flipped: wrong content handed out", "damage", "wrong", True),
    Figure("tail torn: experiments", "damage", "cuts"),
    Figure("tail torn: records lost before the tear", "damage", "lost_to_cuts", True),
    Figure("damaged: sequences reused", "damage", "reused", True),
]

OURS, *PEERS = KINDS


def measure_losses(kind: str, rounds: int, seed: int) -> dict[str, Any]:
    """All experiments with one kind of server."""
    parts = {
        "server": lambda: kill_rounds(kind, rounds, Random(seed)),
        "client": lambda: client_kill_rounds(kind, max(rounds // 10, 2), Random(seed)),
        "damage": lambda: damage_rounds(kind, max(rounds // 5, 3), Random(seed)),
    }
    found: dict[str, Any] = {}
    for part, run in parts.items():
        started = time.monotonic()
        found[part] = asyncio.run(run())
        print(f"{kind}: {time.monotonic() - started:.0f} s, {found[part]}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    arguments = parse_arguments(
        QUESTION,
        ("--rounds", {"type": int, "default": None, "help": "kills of each server (default: 200, with --quick 4)"}),
        ("--seed", {"type": int, "default": None, "help": "when to kill and what to damage, as in an earlier run"}),
        ("--only", {"choices": list(KINDS), "help": "leave the other servers out"}),
    )
    rounds = arguments.rounds or (4 if arguments.quick else 200)
    seed = arguments.seed if arguments.seed is not None else int(time.time())
    kinds = [arguments.only] if arguments.only else list(KINDS)
    found = {kind: measure_losses(kind, rounds, seed) for kind in kinds}

    report = Report(QUESTION, arguments)
    losses = dict.fromkeys(kinds, 0)
    for figure in FIGURES:
        row = {kind: int(getattr(found[kind][figure.part], figure.field)) for kind in kinds}
        report.add(figure.case, row)
        if figure.is_loss:
            for kind, count in row.items():
                losses[kind] += count
    report.add("all losses", losses)
    report.add(
        "server killed: CPU us a message and its ack",
        {kind: found[kind]["server"].cpu_s / max(found[kind]["server"].acknowledged, 1) * 1e6 for kind in kinds},
    )
    if not arguments.only:
        for kind in PEERS:
            name = "losses-" + kind.replace(" ", "-")
            report.compare(name, losses[OURS] + 1, losses[kind] + 1, lower_is_better=True)
    report.finish()
    print(f"seed {seed}")
    return 1 if losses.get(OURS) else 0


if __name__ == "__main__":
    sys.exit(main())
