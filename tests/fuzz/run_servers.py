"""Compare both servers at random: `python -m tests.fuzz.run_servers --seconds 60 --seed 1`.

Every answer of the embedded server is held against that of nats-server. A history in which the two differ ends with its
steps, the two answers, and the command that runs its seed again.
"""

import argparse
import asyncio
import time

from tests.fuzz.server_history import History
from tests.support.pair import Pair

STEPS = 60


async def run(seconds, first):
    deadline = time.monotonic() + seconds
    steps, seed = 0, first
    async with Pair() as pair:
        while seed == first or time.monotonic() < deadline:
            history = History(seed, pair)
            try:
                await history.run(STEPS)
            except BaseException:
                print("\n".join(history.steps))
                command = "python -m tests.fuzz.run_servers"
                print(f"seed {seed}: the servers differ; replay: {command} --seed {seed} --seconds 0")
                raise
            steps += len(history.steps)
            seed += 1
    print(f"seeds {first} to {seed - 1}: {steps} steps, the same answers of both servers")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.seconds, arguments.seed))


if __name__ == "__main__":
    main()
