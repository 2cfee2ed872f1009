"""Runs the protocol's property tests with many more examples than the test suite does.

    python tests/fuzz/fuzz_protocol.py [--examples N] [--seconds N] [--seed N]

Parser, headers and subjects get at least N examples each, in rounds with new seeds, until all have theirs or the time
is up. A failure prints the smallest example that hypothesis finds, and the seed of its round.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType

from hypothesis import HealthCheck, is_hypothesis_test, seed, settings

TESTS = Path(__file__).parents[1] / "unit" / "protocol"
AREAS = {
    "parser": ["test_parser_properties.py", "test_encoder.py"],
    "headers": ["test_headers.py"],
    "subjects": ["test_subjects.py"],
}
ROUND = 250


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Area:
    """The properties of one part of the protocol, and how many examples they have been tried with."""

    def __init__(self, files: list[str]) -> None:
        modules = [load(TESTS / name) for name in files]
        self.tests = [value for module in modules for value in vars(module).values() if is_hypothesis_test(value)]
        self.examples = 0
        for test in self.tests:
            test.hypothesis.inner_test = self.counting(test.hypothesis.inner_test)

    def counting(self, inner_test: Callable[..., None]) -> Callable[..., None]:
        @wraps(inner_test)
        def counted(*args: object, **kwargs: object) -> None:
            self.examples += 1
            inner_test(*args, **kwargs)

        return counted


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--examples", type=int, default=10_000, help="examples for each area (default: %(default)s)")
    arguments.add_argument("--seconds", type=float, default=300, help="stop after this time (default: %(default)s)")
    arguments.add_argument("--seed", type=int, default=None, help="repeat a run")
    options = arguments.parse_args()

    # Tests take their settings from the profile that is loaded when they are defined.
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    settings.register_profile("fuzz", max_examples=ROUND, deadline=None, database=None, suppress_health_check=quiet)
    settings.load_profile("fuzz")
    areas = {name: Area(files) for name, files in AREAS.items()}

    first_seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    deadline = time.monotonic() + options.seconds
    rounds = 0
    while min(area.examples for area in areas.values()) < options.examples and time.monotonic() < deadline:
        for name, area in areas.items():
            for test in area.tests:
                if area.examples >= options.examples or time.monotonic() >= deadline:
                    break
                try:
                    seed(first_seed + rounds)(test)()
                except BaseException:
                    sys.stderr.write(f"{name}: {test.__name__} failed with --seed {first_seed + rounds}\n")
                    raise
        rounds += 1
    for name, area in areas.items():
        sys.stdout.write(f"{name}: {area.examples} examples of {len(area.tests)} properties\n")
    sys.stdout.write(f"no failure (--seed {first_seed})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
