"""Drive the clients at random against a model: `python -m tests.fuzz.run_client --seconds 60 --seed 1`.

Both clients in turn, on both servers in turn. A history that breaks a promise ends with the promise and the command
that runs its seed again. Threads and the network choose their own order, so one seed is many histories: run it often.
"""

import argparse
import asyncio
import time

from tests.fuzz.client_async import AsyncHistory, leftovers
from tests.fuzz.client_blocking import BlockingHistory
from tests.fuzz.client_model import Model, PromiseError
from tests.fuzz.client_server import FuzzedServer

HISTORY_S = 2.0
GONE_S = 10.0


def run_history(client, seed, server, broken):
    """One history and its check; what it did."""
    model = Model(seed)
    name = f"fuzz-{seed}"
    if client == "asyncio":
        asyncio.run(AsyncHistory(model, server, HISTORY_S).run(name))
    else:
        BlockingHistory(model, server, HISTORY_S, broken).run(name)
    deadline = time.monotonic() + GONE_S
    while server.connections(name):
        if time.monotonic() > deadline:
            raise PromiseError("a connection was left behind")
        time.sleep(0.01)
    stored, left = asyncio.run(leftovers(server))
    model.check(stored, left)
    return {**model.counts, "acknowledged": len(model.acknowledged), "ordered": len(model.ordered)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--client", choices=["asyncio", "blocking"], help="only this one")
    parser.add_argument("--server", choices=["embedded", "nats-server"], help="only this one")
    arguments = parser.parse_args()
    clients = [arguments.client] if arguments.client else ["asyncio", "blocking"]
    kinds = [arguments.server] if arguments.server else ["embedded", "nats-server"]
    servers = {kind: FuzzedServer(kind) for kind in kinds}
    deadline = time.monotonic() + arguments.seconds
    totals, seed = {}, arguments.seed
    try:
        while seed == arguments.seed or time.monotonic() < deadline:
            for kind, server in servers.items():
                for client in clients:
                    command = "python -m tests.fuzz.run_client"
                    replay = f"{command} --seed {seed} --seconds 0 --client {client} --server {kind}"
                    broken = f"seed {seed} broke a promise of the {client} client on {kind}; replay: {replay}"
                    try:
                        counts = run_history(client, seed, server, broken)
                    except BaseException:
                        print(broken)
                        raise
                    for what, count in counts.items():
                        totals[what] = totals.get(what, 0) + count
            seed += 1
    finally:
        for server in servers.values():
            server.discard()
    print(f"seeds {arguments.seed} to {seed - 1}: " + ", ".join(f"{count} {what}" for what, count in totals.items()))


if __name__ == "__main__":
    main()
