"""A bounded part of the histories of a work queue whose consumer passes messages that it does not deliver.

`make simulate SEED=… STEPS=…` runs as much of them as one likes.
"""

import pytest

from tests.simulation.work_queue_history import WorkQueueHistory


# Each was wrong once: 0 and 1 lost messages by other filters and a restart, 23 and 35 by a reset that was cut short; in
# 29 an acknowledged message came back.
@pytest.mark.parametrize("seed", [0, 1, 23, 29, 35])
def test_a_work_queue_keeps_what_nobody_acknowledged(seed):
    history = WorkQueueHistory(seed)
    history.run(150)
    assert history.removed
