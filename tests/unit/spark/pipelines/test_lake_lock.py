from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from jetlake.platform import process_start
from jetlake.spark.pipelines.lake_lock import is_alive, this_writer


def test_a_writer_on_this_machine_is_asked_for_and_another_one_listened_to():
    me = this_writer("archive A")
    assert me.started == process_start(os.getpid()) != ""
    assert process_start(1 << 30) == ""
    own = {**asdict(me), "seen": 0.0}
    # The same process, however long it was silent; another one that has its pid; one that is gone.
    assert is_alive(own, me, 1e9)
    assert not is_alive({**own, "started": "1"}, me, 1.0)
    assert not is_alive({**own, "pid": 1 << 30}, me, 1.0)
    elsewhere = {**own, "processes": "another machine", "seen": 1000.0}
    assert is_alive(elsewhere, me, 1059.0)
    assert not is_alive(elsewhere, me, 1061.0)
    # Where the system does not tell of processes, only the time counts.
    assert not is_alive(own, replace(me, started=""), 61.0)
    assert str(me).startswith("archive A (process ")


def test_a_killed_writer_that_nobody_reaps_is_gone():
    me = this_writer("archive A")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = {**asdict(me), "pid": child.pid, "started": process_start(child.pid), "seen": 0.0}
        assert is_alive(found, me, 1e9)
        child.kill()
        # It has ended, and is still there: waiting without reaping.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{child.pid}/stat").exists()
        assert not is_alive(found, me, 1.0)
    finally:
        child.kill()
        child.communicate()
