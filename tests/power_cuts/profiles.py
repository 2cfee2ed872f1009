"""The kinds of runs that are cut: who does what, and what becomes of the server meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.power_cuts.publishing import Copied, Publisher, RemovedIds
from tests.power_cuts.removing import Sequential
from tests.power_cuts.tables import Bucket, Counts, Objects, Restored, Streams
from tests.power_cuts.working import Worker


def alone(random, position):
    """One publisher, whose syncs nobody shares."""
    return [Publisher("P", random, position, random.choice(["single", "pipelined", "many", "ids"]))]


def many(random, position):
    """Streams enough for the redo log."""
    ways = ["single", "single", "ids", "pipelined"]
    return [Publisher(f"P{number}", random, position, random.choice(ways)) for number in range(12)]


def mixed(random, position):
    """Everything."""
    return [
        Publisher("SINGLE", random, position, "single"),
        Publisher("PIPELINED", random, position, "pipelined", compression="s2"),
        Publisher("MANY", random, position, "many"),
        Publisher("IDS", random, position, "ids"),
        Publisher("MANYIDS", random, position, "many ids"),
        Publisher("FAST", random, position, "fast"),
        Copied("COPIED", random, position, "single"),
        RemovedIds("REMOVEDIDS", random, position),
        Sequential("REMOVED", random, position),
        Sequential("LIMITED", random, position, max_msgs=20, compression="s2"),
        Sequential("SUBJECTS", random, position, max_msgs_per_subject=3),
        Worker("WORK", random, position, "workqueue"),
        Worker("INTEREST", random, position, "interest"),
        Worker("LIMITS", random, position, "limits"),
        Bucket("KEYS", random, position),
        Bucket("HISTORY", random, position, history=5),
        Objects("OBJECTS", random, position),
        Counts("COUNTS", random, position),
        Streams("META", random, position),
        Restored("RESTORED", random, position),
    ]


def without_copies(random, position):
    """Everything but copies, for which a full disk has no room."""
    return [scenario for scenario in mixed(random, position) if not isinstance(scenario, Copied)]


def peers(random, position):
    """What can be compared between servers."""
    return [
        Publisher("SINGLE", random, position, "single"),
        Publisher("PIPELINED", random, position, "pipelined"),
        Publisher("IDS", random, position, "ids"),
        Sequential("REMOVED", random, position),
        Bucket("KEYS", random, position),
    ]


@dataclass(frozen=True)
class Profile:
    """A kind of run.

    Attributes:
        make_scenarios: returns what clients do.
        dies: whether the server is killed and stopped meanwhile, and started again.
        pauses: whether all clients are silent for a while now and then, so that the redo log is emptied.
        mib: of the disk; None for what the file system needs.
        interval_s: how often the server syncs; None for always.
    """

    make_scenarios: Callable
    dies: bool = False
    pauses: bool = False
    mib: int | None = None
    interval_s: float | None = None


def fresh(random, position):
    """Streams that are the first of a store."""
    return [Streams("META", random, position)]


def copied(random, position):
    """Streams with mirrors and sources."""
    return [Copied(f"COPIED{number}", random, position, "single") for number in range(3)]


PROFILES = {
    "alone": Profile(alone),
    "many": Profile(many),
    "bursts": Profile(many, pauses=True),
    "mixed": Profile(mixed, dies=True),
    "quiet": Profile(mixed),
    "interval": Profile(mixed, interval_s=0.5),
    "full": Profile(without_copies, dies=True, mib=12),
    "fresh": Profile(fresh),
    "copied": Profile(copied, dies=True),
    "peers": Profile(peers),
}
