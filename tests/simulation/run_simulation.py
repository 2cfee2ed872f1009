"""Run random histories of the whole engine: `make simulate SEED=1 STEPS=20000`.

A history that breaks a promise ends with the promise, the last steps, and the command that replays it.
"""

import argparse
import time

from simulation import Simulation

# A long run is cut into histories of this many steps, each with the next seed: what breaks is replayed quickly.
HISTORY_STEPS = 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    arguments = parser.parse_args()
    started = time.monotonic()
    totals = {"published": 0, "delivered": 0, "confirmed": 0, "crashes": 0}
    seed, left = arguments.seed, arguments.steps
    while left > 0:
        steps = min(left, HISTORY_STEPS)
        simulation = Simulation(seed)
        try:
            simulation.run(steps)
        except BaseException:
            print(f"seed {seed} broke in step {simulation.steps}: … {' '.join(simulation.history[-12:])}")
            print(f"replay: make simulate SEED={seed} STEPS={steps}")
            raise
        for name in totals:
            totals[name] += getattr(simulation, name)
        seed, left = seed + 1, left - steps
    counts = ", ".join(f"{count} {name}" for name, count in totals.items())
    print(f"{arguments.steps} steps from seed {arguments.seed}: {counts}; {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
