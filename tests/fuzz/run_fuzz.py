"""Fuzzes every kind of input from outside, each for a while; exits with 1 when one of them found something.

    python -m tests.fuzz.run_fuzz [--seconds N] [--target NAME …] [--list]

Each target of `fuzz_targets.py` runs in a process of its own: guided by coverage where atheris is installed, else by
blind mutation of the seeds. An input that fails is left in `tests/fuzz/finds/NAME/`, where `test_finds.py` runs it from
then on. The protocol's property tests (`fuzz_protocol.py`) get their share of the time as well.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import traceback
from hashlib import sha1
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]
FINDS = ROOT / "tests" / "fuzz" / "finds"


def guided(name: str, seconds: float) -> None:
    """Fuzz one target with atheris; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["jetlake"], enable_loader_override=False):
        from tests.fuzz.fuzz_targets import TARGETS
    target = TARGETS[name]
    (FINDS / name).mkdir(parents=True, exist_ok=True)
    corpus = Path(tempfile.mkdtemp(prefix=f"jetlake-fuzz-{name}-"))
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed{number}").write_bytes(seed)
    arguments = [
        sys.argv[0],
        str(corpus),
        f"-max_total_time={int(seconds)}",
        f"-artifact_prefix={FINDS / name}/",
        "-max_len=4096",
        "-timeout=20",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    atheris.Setup(arguments, target.run)
    atheris.Fuzz()


def mutate(data: bytes, random: Random) -> bytes:
    """The same bytes with something done to them."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 5])):
        at = random.randrange(len(changed) + 1)
        action = random.randrange(5)
        if action == 0 and changed:
            changed[at % len(changed)] ^= 1 << random.randrange(8)
        elif action == 1:
            changed[at:at] = random.randbytes(random.randint(1, 8))
        elif action == 2:
            del changed[at : at + random.randint(1, 16)]
        elif action == 3:
            changed[at:at] = random.choice(
                [b"[" * 3000, b"-1", b"99999999999999999999", b"\x00", b'"', b"{", b"\xff", b"null"]
            )
        else:
            end = at + random.randint(1, 32)
            changed[at:at] = changed[at:end]
    return bytes(changed)


def blind(name: str, seconds: float, seed: int) -> int:
    """Fuzz one target by mutation alone; how many inputs failed."""
    from tests.fuzz.fuzz_targets import TARGETS

    target = TARGETS[name]
    random = Random(seed)
    pool = list(target.seeds)
    deadline = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < deadline:
        data = random.choice(pool)
        for _ in range(target.mutations):
            data = mutate(data, random)
        tried += 1
        try:
            target.run(data)
        except Exception:
            (FINDS / name).mkdir(parents=True, exist_ok=True)
            (FINDS / name / f"crash-{sha1(data).hexdigest()}").write_bytes(data)
            traceback.print_exc()
            return 1
        if tried % 50 == 0:
            pool = [*target.seeds, *pool[-40:], data]
    sys.stdout.write(f"{name}: {tried} inputs\n")
    return 0


def has_atheris() -> bool:
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


def run_one(name: str, seconds: float) -> bool:
    """One target in a process of its own; whether all went well."""
    command = [sys.executable, "-m", "tests.fuzz.run_fuzz", "--only", name, "--seconds", str(seconds)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 2 + 120, cwd=ROOT)
    output = finished.stdout + finished.stderr
    runs = next((line.split()[-1] for line in output.splitlines() if "number_of_executed_units" in line), "")
    if finished.returncode == 0:
        sys.stdout.write(f"{name}: {runs + ' inputs, ' if runs else ''}no find\n")
        return True
    sys.stdout.write(f"{name}: FOUND SOMETHING\n{output[-6000:]}\n")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="for each target (default: %(default)s)")
    parser.add_argument("--target", action="append", default=[], help="only this one; may be given again")
    parser.add_argument("--list", action="store_true", help="name the targets")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        if has_atheris():
            sys.argv = sys.argv[:1]
            guided(options.only, options.seconds)
            return 0
        return blind(options.only, options.seconds, int(time.time()))
    from tests.fuzz.fuzz_targets import TARGETS

    if options.list:
        sys.stdout.write("\n".join(TARGETS) + "\n")
        return 0
    sys.stdout.write(f"{'guided by coverage' if has_atheris() else 'blind'}, {options.seconds:g} s a target\n")
    good = [run_one(name, options.seconds) for name in options.target or TARGETS]
    if not options.target:
        protocol = [sys.executable, "-m", "tests.fuzz.fuzz_protocol", "--seconds", str(options.seconds)]
        good.append(subprocess.run(protocol, cwd=ROOT).returncode == 0)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
