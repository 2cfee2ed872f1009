"""Every input that a fuzzer ever found, and a few hundred mutations of the good ones, through its target."""

from pathlib import Path
from random import Random

import pytest

from tests.fuzz.fuzz_targets import TARGETS
from tests.fuzz.run_fuzz import mutate

FINDS = sorted(path for path in (Path(__file__).parent / "finds").glob("*/*") if path.is_file())
MUTATIONS = 150


@pytest.mark.parametrize("name", TARGETS)
def test_good_inputs_and_mutations_of_them(name):
    target = TARGETS[name]
    random = Random(name)
    for seed in target.seeds:
        target.run(seed)
    for _ in range(MUTATIONS):
        data = random.choice(target.seeds)
        for _ in range(target.mutations):
            data = mutate(data, random)
        try:
            target.run(data)
        except BaseException as error:
            error.add_note(repr(data[:2000]))
            raise


@pytest.mark.parametrize("path", FINDS, ids=lambda path: f"{path.parent.name}-{path.name[:20]}")
def test_what_was_found_once(path):
    TARGETS[path.parent.name].run(path.read_bytes())
