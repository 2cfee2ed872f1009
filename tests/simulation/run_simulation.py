"""Run random histories of the whole engine: `make simulate SEED=1 STEPS=20000`.

Histories of consumers, of deliveries frame by frame, of a work queue, of batches and schedules, and of mirrors and
sources take turns. A history that breaks a promise ends with the promise, the last steps, and the command that replays
it.
"""

import argparse
import time

from tests.simulation.batch_history import BatchHistory
from tests.simulation.copying_history import CopyingHistory
from tests.simulation.delivery_history import DeliveryHistory
from tests.simulation.simulation import Simulation
from tests.simulation.work_queue_history import WorkQueueHistory

# A long run is cut into histories, each with the next seed: what breaks is replayed quickly.
HISTORIES = {
    "consumers": (Simulation, 1000),
    "deliveries": (DeliveryHistory, 250),
    "work-queue": (WorkQueueHistory, 150),
    "batches": (BatchHistory, 200),
    "copies": (CopyingHistory, 200),
}
"""What a history is about: its class, and its number of steps."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--only", choices=HISTORIES, help="run histories of one kind")
    arguments = parser.parse_args()
    started = time.monotonic()
    kinds = [arguments.only] if arguments.only else list(HISTORIES)
    counts = dict.fromkeys(kinds, 0)
    seed, left = arguments.seed, arguments.steps
    while left > 0:
        for kind in kinds:
            steps = min(left, HISTORIES[kind][1])
            if steps > 0:
                _run(kind, seed, steps)
                counts[kind] += 1
                left -= steps
        seed += 1
    told = ", ".join(f"{count} of {kind}" for kind, count in counts.items())
    print(f"{arguments.steps} steps from seed {arguments.seed}, histories: {told}; {time.monotonic() - started:.0f} s")


def _run(kind, seed, steps):
    history = HISTORIES[kind][0](seed)
    try:
        history.run(steps)
    except BaseException:
        done = " ".join(history.steps[-12:])
        print(f"seed {seed} of {kind} broke: … {done}")
        command = "python -m tests.simulation.run_simulation"
        print(f"replay: {command} --only {kind} --seed {seed} --steps {steps}")
        raise


if __name__ == "__main__":
    main()
