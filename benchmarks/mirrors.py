"""How fast do mirrors and sources catch up with their origin, beside nats-server?

    python benchmarks/mirrors.py [--quick] [--json FILE]

An origin is filled with messages of 128 bytes on 100 subjects. Then a mirror, a stream that sources it, and one that
sources it with a transform are created in turns, and asked how many messages they have until they have all. The rate
counts from the first answer that shows a message, so that the pause before the request to the origin does not count.
Both servers run as processes of their own, with a file store and the same `sync_interval`, in turns; medians.
"""

from __future__ import annotations

import time
from functools import partial

from _harness import Report, Sample, parse_arguments, take_sample
from _raw_client import RawClient
from _servers import KINDS, server

QUESTION = "How many messages a second do mirrors and sources copy?"
PAYLOAD = b"x" * 128
SUBJECTS = 100
CHUNK = 500
CASES: dict[str, dict[str, object]] = {
    "mirror": {"mirror": {"name": "O"}},
    "source": {"sources": [{"name": "O"}]},
    "source-renamed": {"sources": [{"name": "O", "subject_transforms": [{"src": "o.*", "dest": "copy.$1"}]}]},
}


def fill(client: RawClient, count: int) -> None:
    """Store so many messages in the origin."""
    client.request("$JS.API.STREAM.CREATE.O", {"name": "O", "subjects": ["o.*"]})
    chunk = b"".join(b"PUB o.%d %d\r\n%b\r\n" % (number % SUBJECTS, len(PAYLOAD), PAYLOAD) for number in range(CHUNK))
    for _ in range(count // CHUNK):
        client.socket.sendall(chunk)
    client.ping()
    while messages_in(client, "O") < count:
        time.sleep(0.01)


def messages_in(client: RawClient, stream: str) -> int:
    state = client.request(f"$JS.API.STREAM.INFO.{stream}")["state"]
    assert isinstance(state, dict)
    return int(state["messages"])


def catch_up(client: RawClient, config: dict[str, object], count: int) -> float:
    """Create a copy of the origin, and return the messages a second that it copied."""
    client.request("$JS.API.STREAM.CREATE.C", {"name": "C", **config})
    while not (before := messages_in(client, "C")):
        time.sleep(0.002)
    started = time.perf_counter()
    while messages_in(client, "C") < count:
        time.sleep(0.002)
    seconds = time.perf_counter() - started
    client.request("$JS.API.STREAM.DELETE.C")
    return (count - before) / seconds


def main() -> None:
    arguments = parse_arguments(QUESTION)
    # nats-server copies some thousand messages a second when it syncs each.
    counts = {"2m": 100_000, "always": 5_000} if arguments.quick else {"2m": 1_000_000, "always": 50_000}
    repeats = 3
    report = Report(QUESTION, arguments)
    paces: dict[tuple[str, str], dict[str, list[Sample]]] = {}
    for sync_interval, count in counts.items():
        for kind in KINDS:
            with server(kind, sync_interval) as running:
                client = RawClient(running.port)
                fill(client, count)
                for case, config in CASES.items():
                    copy = partial(catch_up, client, config, count)
                    found = [take_sample(running.pid, count, copy) for _ in range(repeats)]
                    paces.setdefault((sync_interval, case), {})[kind] = found
                client.close()
    for (sync_interval, case), by_kind in paces.items():
        report.add_samples(f"{case}, sync {sync_interval}, messages/s", f"{case}-{sync_interval}", by_kind)
    report.finish()


if __name__ == "__main__":
    main()
