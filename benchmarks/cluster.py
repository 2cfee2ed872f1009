"""What do three copies cost, how many Spark tasks does a leader feed, how long is a stream without one?

    python benchmarks/cluster.py [--quick] [--json FILE]

Three nats-servers on this machine form a cluster. The same messages are published, with a window, to a stream with one
copy and to one with three; the latter is read as Spark's tasks read it, by one, two and four processes at once; then
its leader is killed some times, and a publisher times the wait until the next message is acknowledged. The embedded
server has no part in it: it forms no cluster. The CPU time is that of the three servers a message.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import jetlake
from _harness import Report, cpu_s, parse_arguments, spread

sys.path.insert(0, str(Path(__file__).parents[1]))

from jetlake.model.stream import StreamInfo
from tests.support.nats_cluster import Cluster, Node

QUESTION = "What do three copies cost, how many Spark tasks does a leader feed, how long is a stream without one?"
PAYLOAD = b"x" * 128
READ_MESSAGES = 200_000
READ_ROUNDS = 3


async def publish(js: jetlake.client.JetStream, subject: str, count: int) -> float:
    """Publish so many messages; the acknowledged ones a second."""
    started = time.perf_counter()
    for _ in range(count):
        await js.publish_async(subject, PAYLOAD)
    await js.publish_async_complete()
    return count / (time.perf_counter() - started)


def read_task(urls: list[str], created: str, first: int, end: int) -> tuple[int, float]:
    """Read a range as a task of Spark's source does; its messages, and the CPU seconds of this process."""
    from jetlake.client.tables.planning import ReadPartition
    from jetlake.spark.options.source_options import SourceOptions
    from jetlake.spark.source.executor import read_task

    options = SourceOptions.of({"servers": ",".join(urls), "stream": "R3"})
    started_s = time.process_time()
    partition = ReadPartition("R3", first, end, (), "consumer", created, len(PAYLOAD))
    rows = sum(len(columns.sequence) for columns in read_task(partition, options))
    return rows, time.process_time() - started_s


async def read(cluster: Cluster, tasks: int, info: StreamInfo, leader: Node, report: Report) -> None:
    """Read the stream by so many tasks at once."""
    bounds = [1 + info.state.last_seq * place // tasks for place in range(tasks + 1)]
    loop = asyncio.get_running_loop()
    rounds: list[dict[str, float]] = []
    with ProcessPoolExecutor(tasks, mp_context=get_context("spawn")) as pool:
        # Once for the imports of the processes, then for the clock.
        for _ in range(1 + READ_ROUNDS):
            before = {node.name: cpu_s(node.pid) for node in cluster.nodes}
            started = time.perf_counter()
            parts = [
                loop.run_in_executor(pool, read_task, cluster.urls, info.created, *bounds[place : place + 2])
                for place in range(tasks)
            ]
            done = await asyncio.gather(*parts)
            seconds = time.perf_counter() - started
            spent = {node.name: cpu_s(node.pid) - before[node.name] for node in cluster.nodes}
            rows = sum(rows for rows, _ in done)
            figures = {
                "messages a second": rows / seconds,
                "leader CPU us": spent[leader.name] / rows * 1e6,
                "three servers CPU us": sum(spent.values()) / rows * 1e6,
                "task CPU us": sum(task_s for _, task_s in done) / rows * 1e6,
            }
            rounds.append(figures)
    columns = {name: [figures[name] for figures in rounds[1:]] for name in rounds[0]}
    medians = {name: statistics.median(values) for name, values in columns.items()}
    report.add(f"read by {tasks} tasks", {**medians, "spread %": spread(columns["messages a second"])})


async def run(count: int, repeats: int, kills: int, report: Report) -> None:
    cluster = Cluster()
    try:
        await cluster.start()
        async with await jetlake.connect(cluster.urls) as client:
            js = client.jetstream()
            for copies in (1, 3):
                await js.create_stream(f"R{copies}", subjects=[f"r{copies}"], num_replicas=copies)
            rates: dict[int, list[float]] = {1: [], 3: []}
            costs: dict[int, list[float]] = {1: [], 3: []}
            for _ in range(repeats):
                for copies, found in rates.items():
                    before_s = sum(cpu_s(node.pid) for node in cluster.nodes)
                    found.append(await publish(js, f"r{copies}", count))
                    costs[copies].append((sum(cpu_s(node.pid) for node in cluster.nodes) - before_s) / count * 1e6)
            for copies, found in rates.items():
                report.add(
                    f"published to {copies} copies",
                    {
                        "messages a second": statistics.median(found),
                        "three servers CPU us": statistics.median(costs[copies]),
                        "spread %": spread(found),
                    },
                )
            report.compare("three_copies", statistics.median(rates[3]), statistics.median(rates[1]))
            await publish(js, "r3", READ_MESSAGES)
            info = (await js.stream("R3")).cached_info
            leader = await cluster.leader_of(js, "R3")
            for tasks in (1, 2, 4):
                await read(cluster, tasks, info, leader, report)
            waits = []
            for number in range(kills):
                node = await cluster.leader_of(js, "R3")
                await node.kill()
                started = time.perf_counter()
                await js.publish("r3", PAYLOAD, msg_id=str(number))
                waits.append(time.perf_counter() - started)
                node.start()
                await cluster.ready()
            report.add(
                "seconds without a leader",
                {"median": statistics.median(waits), "longest": max(waits), "spread %": spread(waits)},
            )
    finally:
        await cluster.discard()


def main() -> None:
    arguments = parse_arguments(QUESTION)
    report = Report(QUESTION, arguments)
    sizes = (5_000, 3, 3) if arguments.quick else (20_000, 5, 10)
    asyncio.run(run(*sizes, report))
    report.finish()


if __name__ == "__main__":
    main()
