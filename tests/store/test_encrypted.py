"""The crash and damage tests once more on an encrypted disk: they know nothing of it, and the faults hit ciphertext."""

from __future__ import annotations

import pytest

from tests.store import test_crash, test_damage, test_disk_faults, test_journal
from tests.store.test_crash import *  # noqa: F403
from tests.store.test_damage import *  # noqa: F403
from tests.store.test_disk_faults import *  # noqa: F403
from tests.store.test_journal import *  # noqa: F403
from tests.support.encrypted_disk import EncryptedFaultyDisk

MODULES = (test_crash, test_damage, test_disk_faults, test_journal)
# Their capacities are so many bytes of the store's, and a file under encryption has a header too.
del test_a_purge_of_a_full_disk_survives_a_power_cut  # noqa: F821
del test_a_segment_that_was_taken_back_and_is_back_after_a_power_cut  # noqa: F821
# Thousands of starts for files without a message, whose bytes lie where they lie in the clear.
del test_a_flipped_byte_in_the_other_files_costs_nothing  # noqa: F821


@pytest.fixture(autouse=True)
def encrypted(monkeypatch):
    for module in MODULES:
        monkeypatch.setattr(module, "FaultyDisk", EncryptedFaultyDisk)
        if hasattr(module, "SEEDS"):
            monkeypatch.setattr(module, "SEEDS", module.SEEDS // 4)
