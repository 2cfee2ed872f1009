"""Run worlds: `python -m tests.world.run_world --seeds 1000 --seed 1`, or one again with its trace: `--seed 7 --trace`.

Each seed runs in a forked process, so that every one begins with the same memory and takes what it leaves along.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
if os.environ.get("PYTHONHASHSEED") != "0":
    # The order of sets is the hash's: a seed must find the same one in every run. So must addresses be.
    import ctypes

    os.environ["PYTHONHASHSEED"] = "0"
    ctypes.CDLL(None).personality(0x0040000)  # ADDR_NO_RANDOMIZE
    os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:]])
sys.path.insert(0, str(HERE.parents[1]))

from tests.world import interposed  # noqa: E402  # isort: skip
import argparse  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import pickle  # noqa: E402
import random  # noqa: E402
import re  # noqa: E402
import resource  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import traceback  # noqa: E402

from jetlake.protocol import nuid  # noqa: E402
from tests.world.history import History, parts_of  # noqa: E402
from tests.world.scheduler import BEGIN_NS  # noqa: E402

_wall = interposed._real["monotonic"]
SEED_S = 1800
SEED_CPU_S = 60
"""How long a world may take; most take a second of CPU time."""
PROGRESS_SEEDS = 50
"""How often a run says how far it is."""
REACH_SEEDS = 1000
"""So many seeds must reach every rare state that is marked in the sources, by a comment `# sometimes: …`."""
_kept = []


def run_seed(seed, shift=0, measures=False, **options):
    """Run one history in this process, and return what came of it.

    Args:
        measures: write down which branches were taken, for `coverage combine`.
        shift: so many objects are in memory before; nothing may depend on the addresses of objects.
    """
    gc.disable()
    logging.disable(logging.WARNING)
    random.seed(seed)
    _kept.append([object() for _ in range(shift)])
    history = History(seed, **options)
    measured = _begin_measuring() if measures else None
    interposed.enter(history.world)
    nuid._shared.renew()
    failure = None
    try:
        history.run()
    except BaseException as error:
        failure = "".join(traceback.format_exception(error))
    if measured is not None:
        interposed.enter(None)
        measured.stop()
        measured.save()
    world = history.world
    return {
        "seed": seed,
        "failure": failure,
        "digest": world.digest.hexdigest(),
        "counts": world.counts,
        "steps": history.steps,
        "faults": history.faults,
        "turns": world.scheduler.steps,
        "virtual_s": (world.scheduler.now_ns - BEGIN_NS) / 1e9,
        "lines": world.lines(),
    }


def _begin_measuring():
    """Begin to note the branches that are taken in this thread and in those of the world."""
    import coverage

    measured = coverage.Coverage(data_suffix=True)
    measured.start()
    return measured


def run_forked(seed, **options):
    """Run one history in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            if not options.get("measures"):
                resource.setrlimit(resource.RLIMIT_CPU, (SEED_CPU_S, SEED_CPU_S))
            outcome = run_seed(seed, **options)
            interposed.enter(None)
            with os.fdopen(writing, "wb") as file:
                pickle.dump(outcome, file)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    data = bytearray()
    deadline = _wall() + SEED_S
    while select.select([reading], [], [], max(deadline - _wall(), 0))[0]:
        piece = os.read(reading, 1 << 20)
        if not piece:
            break
        data += piece
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    os.waitpid(child, 0)
    if not data:
        return {"seed": seed, "failure": f"seed {seed} did not end, or ended the process", "lines": [], "counts": {}}
    return pickle.loads(data)


def shorten(outcome, runs_max=80):
    """Leave out steps and faults of a failing history as long as it fails in the same way; what was left out."""
    kind = _kind(outcome)
    steps, skip, runs = [*outcome["faults"], *outcome["steps"]], set(), 0
    size = len(steps)
    while size and runs < runs_max:
        for start in range(0, len(steps), size):
            part = set(steps[start : start + size])
            if runs < runs_max and not part <= skip:
                runs += 1
                if _kind(run_forked(outcome["seed"], skip=frozenset(skip | part))) == kind:
                    skip |= part
        steps = [step for step in steps if step not in skip]
        size //= 2
    return skip, len(steps)


def _cpu_s():
    """Return the seconds of a processor that this process and those it has forked took."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


_PASSED_BY = {"failure": None, "counts": {}, "cpu_s": 0, "digest": "", "turns": 0, "virtual_s": 0}
_LOGGED = ("seed", "failure", "digest", "counts", "turns", "virtual_s", "cpu_s")


def _write_log(path, outcome):
    """Add what came of a seed, so that a run that is interrupted loses nothing."""
    if path is not None:
        with path.open("a") as file:
            print(json.dumps({name: outcome.get(name) for name in _LOGGED}), file=file)


def _read_log(path):
    """Return what came of the seeds that a log has as passed."""
    if path is None or not path.exists():
        return {}
    outcomes = map(json.loads, path.read_text().splitlines())
    return {outcome["seed"]: outcome for outcome in outcomes if outcome["failure"] is None}


def _kind(outcome):
    """Return how a history failed, without its numbers; None when it did not."""
    failure = outcome["failure"]
    return re.sub(r"\d+", "", failure.strip().splitlines()[-1])[:60] if failure is not None else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--seconds", type=float, help="go on for so long instead")
    parser.add_argument("--trace", action="store_true", help="print who sent what when")
    parser.add_argument("--skip", default="", help="steps and faults to leave out, with commas between them")
    parser.add_argument("--digests", action="store_true", help="print the digest of every seed")
    parser.add_argument("--shift", type=int, default=0, help="begin with so many objects in memory")
    parser.add_argument("--shrink", action="store_true", help="shorten the histories that fail")
    parser.add_argument("--first", action="store_true", help="end at the first that fails")
    parser.add_argument("--coverage", action="store_true", help="note which branches are taken")
    parser.add_argument("--parts", default="", help="only the seeds whose worlds have these parts, with commas between")
    parser.add_argument("--log", type=Path, help="note what came of each seed, and skip those that passed before")
    parser.add_argument("--here", action="store_true", help="run in this process, for a debugger")
    arguments = parser.parse_args()
    began, totals, failed = _wall(), {}, []
    passed = _read_log(arguments.log) if not arguments.trace else {}
    seed = arguments.seed
    used_s = 0
    skip = frozenset(arguments.skip.split(",")) - {""}
    parts = frozenset(arguments.parts.split(",")) - {""}
    while True:
        run = run_seed if arguments.here else run_forked
        if parts and not parts <= parts_of(seed):
            outcome = _PASSED_BY
        elif (outcome := passed.get(seed)) is None:
            cpu_s = _cpu_s()
            outcome = run(
                seed, keeps_trace=arguments.trace, skip=skip, shift=arguments.shift, measures=arguments.coverage
            )
            outcome["cpu_s"] = round(_cpu_s() - cpu_s, 2)
            _write_log(arguments.log, outcome)
        used_s += outcome["cpu_s"]
        for name, number in outcome["counts"].items():
            totals[name] = totals.get(name, 0) + number
        if arguments.trace:
            print(*outcome["lines"], sep="\n")
        if outcome["failure"] is not None:
            failed.append(seed)
            print(f"seed {seed} FAILED\n{outcome['failure']}")
            print(f"replay: python -m tests.world.run_world --seed {seed} --trace", flush=True)
            if arguments.shrink:
                left_out, left = shorten(outcome)
                print(f"{left} steps are left: add --skip {','.join(sorted(left_out))}", flush=True)
        elif (arguments.seeds == 1 and arguments.seconds is None) or arguments.digests:
            digest, turns, virtual_s = outcome["digest"], outcome["turns"], outcome["virtual_s"]
            print(f"seed {seed}: digest {digest}, {turns} turns, {virtual_s:.1f} s of its own time")
        seed += 1
        count = seed - arguments.seed
        if count % PROGRESS_SEEDS == 0:
            print(f"{count} seeds, {used_s / count:.2f} s of CPU time each, failed: {failed}", flush=True)
        if arguments.first and failed:
            break
        if arguments.seconds is not None:
            if _wall() - began >= arguments.seconds:
                break
        elif seed >= arguments.seed + arguments.seeds:
            break
    elapsed = _wall() - began
    count = seed - arguments.seed
    print(", ".join(f"{number} {name}" for name, number in sorted(totals.items())))
    unseen = sorted(interposed.marks - {name.removeprefix("sometimes ") for name in totals})
    print(f"{len(interposed.marks) - len(unseen)} of {len(interposed.marks)} rare states were reached; not: {unseen}")
    # On a machine that others use, only the time of the processor says how fast worlds are.
    rate = count / max(used_s, 0.01) * 60
    print(f"{count} seeds in {elapsed:.0f} s, {rate:.0f} a minute of CPU time, {len(failed)} failed: {failed[:20]}")
    sys.exit(bool(failed) or (count >= REACH_SEEDS and bool(unseen)))


if __name__ == "__main__":
    main()
