"""Rounds of load and kill -9, and the book-keeper that compares what a server promised with what it still has."""

import asyncio
import sys
from dataclasses import dataclass, fields
from pathlib import Path

from tests.faults.killable import KillableServer
from tests.faults.load_clients import CLIENTS, GONE, create, stored_messages, waiting_for_worker

ACK_WAIT_S = 1.0
PUBLISHERS = 8
ROOT = Path(__file__).parents[2]
WORKERS = 2
BATCH = 20
ROUNDS_PER_FOLDER = 10
"""So many rounds build on one folder, before everything in it is compared a last time and a new one is begun."""


@dataclass
class Findings:
    """What the rounds have found; everything from `lost` on must be zero."""

    rounds: int = 0
    acknowledged: int = 0
    """Messages with a PubAck."""
    cpu_s: float = 0.0
    """CPU time of the servers under load, up to the kill."""
    confirmed: int = 0
    """Acknowledgements of a worker that the server has answered."""
    lost: int = 0
    """A message with a PubAck is not there, or not as it was."""
    stored_twice: int = 0
    """A message that was published once is there twice."""
    reused: int = 0
    """A sequence that somebody has seen now belongs to another message."""
    pending_again: int = 0
    """A worker got a message again whose acknowledgement had been confirmed."""
    never_delivered: int = 0
    """A message that is there, was never acknowledged, and does not come."""

    def add(self, other):
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def losses(self):
        return self.lost + self.stored_twice + self.reused + self.pending_again + self.never_delivered


class Ledger:
    """What one folder's server has promised so far."""

    def __init__(self):
        self.acknowledged = {}
        """Sequence of the PubAck: payload."""
        self.seen = {}
        """Sequence: payload, of everything that any client ever saw."""
        self.confirmed = set()
        """Sequences whose acknowledgement was answered."""
        self.attempted = set()
        """Sequences whose acknowledgement was sent: confirmed, or on the way when the server was killed."""
        self.findings = Findings()
        self._again = set()

    def published(self, sequence, payload):
        self._see(sequence, payload)
        self.acknowledged[sequence] = payload
        self.findings.acknowledged += 1

    def delivered(self, sequence, payload):
        self._see(sequence, payload)
        if sequence in self.confirmed and sequence not in self._again:
            self._again.add(sequence)
            self.findings.pending_again += 1

    def confirm(self, sequence):
        if sequence not in self.confirmed:
            self.confirmed.add(sequence)
            self.findings.confirmed += 1

    @property
    def has_confirmed(self):
        """Whether the server has confirmed an acknowledgement."""
        return self.findings.confirmed > 0

    def _see(self, sequence, payload):
        if self.seen.setdefault(sequence, payload) != payload:
            self.findings.reused += 1
            self.seen[sequence] = payload

    def compare(self, stored):
        """Hold what is stored against what was promised; a loss is counted once."""
        for sequence, payload in list(self.acknowledged.items()):
            if stored.get(sequence) != payload:
                self.findings.lost += 1
                del self.acknowledged[sequence]
                self.confirmed.discard(sequence)
        for sequence, payload in stored.items():
            self._see(sequence, payload)
        self.findings.stored_twice += len(stored) - len(set(stored.values()))


class Load:
    """Publishers and workers of one client library, until their server dies.

    Args:
        ledger: where every promise is noted the moment it is made.
        prefix: makes payloads unlike those of all other rounds.
    """

    def __init__(self, client_name, url, ledger, prefix):
        self._make = CLIENTS[client_name]
        self._url = url
        self._ledger = ledger
        self._prefix = prefix
        self._is_over = False

    async def run(self, kill_after_s, kill):
        clients = [await self._make().connect(self._url) for _ in range(2)]
        await clients[1].bind()
        tasks = [asyncio.ensure_future(self._publish(clients[0], number)) for number in range(PUBLISHERS)]
        tasks += [asyncio.ensure_future(self._work(clients[1])) for _ in range(WORKERS)]
        await asyncio.sleep(kill_after_s)
        # A slow machine may need longer for its first promise of all.
        while not self._ledger.has_confirmed and not any(task.done() for task in tasks):
            await asyncio.sleep(0.005)
        # In a thread: the clients go on while the server dies.
        await asyncio.get_running_loop().run_in_executor(None, kill)
        # Where the server lives on, a cancellation alone may get lost in a client that is about to time out.
        self._is_over = True
        await asyncio.wait(tasks, timeout=1.0)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            try:
                await asyncio.wait_for(client.close(), 5)
            except GONE:
                pass
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, GONE):
                raise result

    async def _publish(self, client, number):
        count = 0
        while not self._is_over:
            payload = b"%s.%d.%d" % (self._prefix, number, count)
            count += 1
            self._ledger.published(await client.publish(f"faults.{number}", payload), payload)

    async def _work(self, client):
        while not self._is_over:
            await take(await client.fetch(BATCH, 0.2), self._ledger)


async def take(messages, ledger):
    """Note each message, acknowledge all of them at once, and note each answer when it comes."""

    async def acknowledge(sequence, send_and_wait):
        ledger.attempted.add(sequence)
        await send_and_wait()
        ledger.confirm(sequence)

    for sequence, payload, _ in messages:
        ledger.delivered(sequence, payload)
    await asyncio.gather(*(acknowledge(sequence, send_and_wait) for sequence, _, send_and_wait in messages))


async def drain(url, ledger, stored):
    """Let a worker take all that the consumer still has to give, and see whether it is what it should be."""
    client = await CLIENTS["nats-py"]().connect(url)
    await client.bind()
    delivered = set()
    while sum(await waiting_for_worker(url)):
        messages = await client.fetch(100, ACK_WAIT_S / 2)
        delivered.update(sequence for sequence, _, _ in messages)
        await take(messages, ledger)
    await client.close()
    ledger.findings.never_delivered += len(set(stored) - delivered - ledger.confirmed - ledger.attempted)


async def kill_rounds(kind, rounds, random, clients=("jetlake", "nats-py"), progress=None):
    """So many rounds of load, kill -9, restart and comparison; the findings.

    Args:
        random: decides when the server dies.
        progress: called after each round with the findings so far.
    """
    findings = Findings()
    done = 0
    while done < rounds:
        with KillableServer(kind) as server:
            await create(server.url, ACK_WAIT_S)
            ledger = Ledger()
            for _ in range(min(ROUNDS_PER_FOLDER, rounds - done)):
                load = Load(clients[done % len(clients)], server.url, ledger, b"%d" % done)
                ledger.findings.cpu_s -= server.cpu_s()

                def kill(server=server, findings=ledger.findings):
                    findings.cpu_s += server.cpu_s()
                    server.kill()

                await load.run(random.uniform(0.05, 0.4), kill)
                server.start()
                stored, state = await stored_messages(server.url)
                assert state.messages == len(stored), (state, len(stored))
                ledger.compare(stored)
                await drain(server.url, ledger, stored)
                done += 1
                ledger.findings.rounds += 1
                if progress is not None:
                    progress(ledger.findings)
            findings.add(ledger.findings)
    return findings


async def client_kill_rounds(kind, rounds, random, clients=("jetlake", "nats-py")):
    """So many rounds in which the client is killed in the middle of its work, and its server goes on; the findings."""
    with KillableServer(kind) as server:
        await create(server.url, ACK_WAIT_S)
        ledger = Ledger()
        for done in range(rounds):
            await _kill_client(clients[done % len(clients)], server.url, f"client{done}", ledger, random)
            stored, _ = await stored_messages(server.url)
            ledger.compare(stored)
            await drain(server.url, ledger, stored)
            ledger.findings.rounds += 1
        return ledger.findings


async def _kill_client(client_name, url, prefix, ledger, random):
    victim = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.victim_client", client_name, url, prefix),
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
        cwd=ROOT,
    )
    told = b""
    while line := await victim.stdout.readline():
        told += line
        if ledger.has_confirmed or line.startswith(b"C "):
            break
    await asyncio.sleep(random.uniform(0.05, 0.3))
    victim.kill()
    # A line that the kill cut short tells of nothing.
    lines = (told + await victim.stdout.read()).split(b"\n")[:-1]
    await victim.wait()
    for line in lines:
        word, number, *payload = line.split(b" ", 2)
        sequence = int(number)
        if word == b"P":
            ledger.published(sequence, payload[0])
        elif word == b"D":
            ledger.delivered(sequence, payload[0])
        elif word == b"A":
            ledger.attempted.add(sequence)
        else:
            ledger.confirm(sequence)
