"""What importing the wire costs, and saves, a program."""

import subprocess
import sys

READS = 1000
PROGRAM = f"""
import resource, socket
import jetlake.client.connection.wire_protocol

ours, theirs = socket.socketpair()

def read():
    theirs.send(b"x")
    ours.recv(256 * 1024)  # As asyncio does.

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(10):
    read()
before = faults()
for _ in range({READS}):
    read()
print(faults() - before)
"""


def test_reads_take_no_new_memory_from_the_system():
    faults = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    assert int(faults) < READS / 10
