"""How many frames a second does the parser read, beside nats-py's?

    python benchmarks/parse.py [--quick] [--json FILE]

The frames are those of a pull consumer with acknowledgement subjects as replies, fed in reads of 64 KiB. nats-py's
delivery is a coroutine that does nothing, and ours builds a frame of every message, so the peer is given an advantage.
Time is CPU time: neither parser waits, and what else the machine does is not their affair.
What a server reads has no peer in Python; its rows show that it is as fast. No server takes part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from nats.protocol.parser import Parser as NatsPyParser

from _harness import Report, measure, parse_arguments
from jetlake.protocol import encoder
from jetlake.protocol.parser import ClientParser, ServerParser

QUESTION = "How many frames a second does the parser read?"
FRAMES = 100_000
READ_SIZE = 64 * 1024
HEADER = b"NATS/1.0\r\nNats-Msg-Id: 4ae1f0c2-77\r\n\r\n"


def delivery(index: int, size: int, with_header: bool) -> bytes:
    """A message as a pull consumer delivers it."""
    subject = b"orders.new.%d" % (index % 100)
    reply = b"$JS.ACK.ORDERS.worker.1.%d.%d.1763190000000000000.%d" % (index + 1, index + 1, FRAMES - index)
    if with_header:
        return encoder.hmsg(subject, b"7", reply, HEADER, b"x" * size)
    return encoder.msg(subject, b"7", reply, b"x" * size)


def publication(index: int, size: int, with_header: bool) -> bytes:
    """A message as a client publishes it, with an inbox for the acknowledgement."""
    subject = b"orders.new.%d" % (index % 100)
    reply = b"_INBOX.9zkVLMnUzkXz6z1HzA0C0T.%d" % index
    if with_header:
        return encoder.hpub(subject, reply, HEADER, b"x" * size)
    return encoder.pub(subject, reply, b"x" * size)


def reads(frame: Callable[[int, int, bool], bytes], size: int, header_every: int = 0) -> list[bytes]:
    """All frames, cut as a socket cuts them."""
    data = b"".join(frame(index, size, header_every > 0 and index % header_every == 0) for index in range(FRAMES))
    return [data[start : start + READ_SIZE] for start in range(0, len(data), READ_SIZE)]


class Delivered:
    """Stands for nats-py's client: its cheapest possible delivery."""

    async def _process_msg(self, *arguments: object) -> None:
        pass


def run_nats_py(pieces: list[bytes]) -> None:
    """Nothing in it waits, so the coroutine is driven without an event loop."""

    async def parse() -> None:
        parser = NatsPyParser(Delivered())
        for piece in pieces:
            await parser.parse(piece)

    try:
        parse().send(None)
    except StopIteration:
        return
    raise AssertionError("nats-py's parser waited")


def run_ours(make_parser: Callable[[], ClientParser | ServerParser], pieces: list[bytes]) -> None:
    parser = make_parser()
    count = sum([len(parser.feed(piece)) for piece in pieces])
    assert count == FRAMES, parser.error


DELIVERIES = {
    "MSG 16 B": ("msg_16", 16, 0),
    "MSG 128 B": ("msg_128", 128, 0),
    "MSG 1024 B": ("msg_1024", 1024, 0),
    "HMSG 128 B": ("hmsg_128", 128, 1),
    "80 % MSG, 20 % HMSG 128 B": ("mixed", 128, 5),
}
PUBLICATIONS = {"PUB 16 B": (16, 0), "PUB 128 B": (128, 0), "PUB 1024 B": (1024, 0), "HPUB 128 B": (128, 1)}


def main() -> None:
    arguments = parse_arguments(QUESTION)
    repeats = 9 if arguments.quick else 25
    report = Report(QUESTION, arguments)
    for case, (name, size, header_every) in DELIVERIES.items():
        pieces = reads(delivery, size, header_every)
        runs = {"nats-py": partial(run_nats_py, pieces), "jetlake": partial(run_ours, ClientParser, pieces)}
        seconds = measure(runs, repeats, clock=time.process_time)
        peer, ours = FRAMES / seconds["nats-py"], FRAMES / seconds["jetlake"]
        ratio = report.compare(f"parse_{name}", ours, peer)
        report.add(
            case, {"nats-py frames/s": peer, "jetlake frames/s": ours, "ratio": ratio, "spread %": seconds.spread}
        )
    for case, (size, header_every) in PUBLICATIONS.items():
        pieces = reads(publication, size, header_every)
        seconds = measure({"jetlake": partial(run_ours, ServerParser, pieces)}, repeats, clock=time.process_time)
        report.add(case, {"jetlake frames/s": FRAMES / seconds["jetlake"], "spread %": seconds.spread})
    report.finish()


if __name__ == "__main__":
    main()
