"""A signal that comes while `jetlake serve` is still loading: always a clean stop, never swallowed."""

import signal
import subprocess
import sys
import time

import pytest

# Sends itself a signal at the moment a module is looked for.
WHILE_LOADING = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), int(sys.argv[2]))
from jetlake.cli.main import main
sys.meta_path.insert(0, Finder())
sys.exit(main(["serve", "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", sys.argv[3]]))
"""

# As the above, with signals from outside as soon as it has said that it begins.
FROM_OUTSIDE = """
import signal, sys
from jetlake.cli.main import main
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # the line below tells too early
print("begins", flush=True)
sys.exit(main(["serve", "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", sys.argv[1]]))
"""


def run(program, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def assert_clean_stop(process):
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert "Server Exiting.." in log, log
    assert "Traceback" not in log, log


@pytest.mark.parametrize(
    "modules",
    [
        ["jetlake.cli.served_dashboard", "jetlake.server.command", "jetlake.errors", "asyncio"],
        ["jetlake.server.shell.server", "uvloop", "jetlake.server.shell.committer", "jetlake.store.files.disk"],
    ],
)
def test_a_signal_while_modules_are_loaded_stops_the_server(tmp_path, modules):
    running = [
        run(WHILE_LOADING, module, [signal.SIGINT, signal.SIGTERM][number % 2].value, tmp_path / str(number))
        for number, module in enumerate(modules)
    ]
    for process in running:
        assert_clean_stop(process)


def test_a_signal_at_any_moment_of_the_start_stops_the_server(tmp_path):
    for turn in range(4):
        running = [run(FROM_OUTSIDE, tmp_path / f"{turn}-{number}") for number in range(4)]
        for number, process in enumerate(running):
            process.stdout.readline()
            time.sleep(turn * 0.02 + number * 0.005)  # spread over the start, whatever it is doing then
            process.send_signal([signal.SIGINT, signal.SIGTERM][number % 2])
        for process in running:
            assert_clean_stop(process)
