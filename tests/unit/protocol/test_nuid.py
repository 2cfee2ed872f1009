"""Unique names: shape, uniqueness under threads and across forks, and repeatability from a seed."""

import subprocess
import sys
from random import Random
from threading import Thread

from jetlake.protocol import nuid as nuid_module
from jetlake.protocol.nuid import Nuid, new_inbox, next_nuid


def test_a_name_is_22_letters_and_digits():
    for _ in range(1000):
        name = next_nuid()
        assert len(name) == 22
        assert name.isascii()
        assert name.isalnum()


def test_names_differ_and_share_their_prefix():
    source = Nuid(Random(1))
    names = [source.next() for _ in range(20_000)]
    assert len(set(names)) == len(names)
    assert len({name[:12] for name in names}) == 1


def test_the_same_seed_gives_the_same_names():
    assert [Nuid(Random(7)).next() for _ in range(3)] == [Nuid(Random(7)).next() for _ in range(3)]
    assert Nuid(Random(7)).next() != Nuid(Random(8)).next()


def test_a_spent_sequence_takes_a_new_prefix():
    source = Nuid(Random(1))
    before = source.next()
    source._sequence = nuid_module._SEQUENCE_LIMIT - 1
    after = source.next()
    assert after[:12] != before[:12]
    assert len(after) == 22


def test_threads_never_get_the_same_name():
    source = Nuid()
    found: list[list[str]] = [[] for _ in range(4)]

    def draw(names: list[str]) -> None:
        names.extend(source.next() for _ in range(5000))

    threads = [Thread(target=draw, args=(names,)) for names in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({name for names in found for name in names}) == 20_000


FORK = """
import os
from jetlake.protocol.nuid import next_nuid
before = next_nuid()
if os.fork() == 0:
    print(next_nuid(), flush=True)
    os._exit(0)
os.wait()
print(before, next_nuid())
"""


def test_a_forked_process_takes_names_of_its_own():
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    in_child, before, after = run.stdout.split()
    assert in_child[:12] != before[:12] == after[:12]


def test_inboxes():
    assert new_inbox().startswith("_INBOX.")
    assert new_inbox("me").startswith("me.")
    assert len(new_inbox("me")) == 25
    assert new_inbox() != new_inbox()
