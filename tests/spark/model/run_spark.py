"""Run random histories of the Spark source and sink: `python -m tests.spark.model.run_spark --seed 1 --histories 1000`.

A history that breaks a promise ends with the promise, its last steps, and the command that replays it.
"""

import argparse
import logging
import sys
import time
from random import Random

from tests.spark.model.spark_history import History
from tests.spark.model.worlds import FakeWorld

STEPS = 16


def play(seed: int, world=None) -> History:
    """One history; what breaks says how to replay it."""
    history = History(world or _world(seed), seed)
    try:
        history.run(STEPS)
    except Exception as error:
        steps = "\n  ".join(history.steps[:1] + history.steps[-80:])
        replay = f"make simulate-spark SEED={seed} HISTORIES=1"
        raise AssertionError(f"{type(error).__name__}: {error}\n  {steps}\nreplay: {replay}") from error
    return history


def _world(seed: int) -> FakeWorld:
    world = FakeWorld()
    if seed % 13 == 3:  # Some histories have mirrors that hold less than their origins.
        world.server.mirrors = Random(seed)
    return world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--go-on", action="store_true", help="count what breaks instead of stopping there")
    arguments = parser.parse_args()
    logging.getLogger("jetlake").setLevel(logging.ERROR)
    started = time.monotonic()
    rows = batches = alarms = broken = 0
    for seed in range(arguments.seed, arguments.seed + arguments.histories):
        try:
            history = play(seed)
        except AssertionError as error:
            if not arguments.go_on:
                print(error)
                sys.exit(1)
            broken += 1
            print(f"seed {seed}: {str(error).splitlines()[0][:200]}")
            continue
        rows += sum(history.committed.values())
        batches += history.batch
        alarms += history.alarms
    seconds = time.monotonic() - started
    print(
        f"{arguments.histories} histories from seed {arguments.seed}: {rows} rows in {batches} batches, "
        f"{alarms} losses told, {broken} broken promises; {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
