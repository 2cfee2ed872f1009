"""Every example runs to its end and prints what it promises."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jetlake.server import Server

EXAMPLES = Path(__file__).parent.parent / "examples"
TIMEOUT_S = 60

PRINTED = {
    "01_hello": "greetings.world hello\n",
    "02_request_reply": "IS ANYBODY THERE\\?\nno: no responders on 'whisper'.*\n",
    "03_publish_to_a_stream": "sequence 1, duplicate: False\nsequence 1, duplicate: True\n1 message in the stream\n",
    "04_fetch": r"got \[0, 1, 2, 3\]\ngot \[4, 5, 6, 7\]\ngot \[8, 9\]\n0 jobs left\n",
    "05_consume": "good, try 1\nslow, try 1\nbroken, try 1\nlast, try 1\nslow, try 2\n",
    "06_handler": r"reported: three is difficult at first\ndone: \[0, 1, 2, 3, 4, 5, 6, 7, 8, 9\]\n",
    "07_ordered_read": r"\[91, 93, 95, 97, 99\]\n",
    "08_pipelined_publish": r"5000 readings stored\n1 refused: maximum messages exceeded.*\n",
    "09_standby": "the first is pinned\nthe second is pinned\n",
    "12_service": "42\n\\(404\\) nothing called coffee\ntill 1.0.0: 2 requests, 1 error\n",
    "11_dead_letters": "try 1 of ten\ntry 2 of ten\ndead.ORDERS ValueError: invalid literal .*\n",
    "14_consumer_group": r"\{'parcels.bonn': \[0, 1, 2\], .*'parcels.nice': \[0, 1, 2\]\}\n",
    "13_counters": r"\{.*'votes.tea': 3.*\}\n\['left', 'right'\]\n",
    "12_object_store": "stored 300000 bytes in 3 chunks\ncopied: True\nold.bin, new.bin left\n",
    "15_tables": "50 readings, the warmest 29\n",
    "reference": "(?s).*\n31 examples\n",
    "10_blocking": "fetched 5\nthe others add up to 180\n",
}


def test_every_example_is_expected_to_print_something():
    assert sorted(path.stem for path in EXAMPLES.glob("[0-9r]*.py")) == sorted(PRINTED)


@pytest.mark.parametrize("name", sorted(PRINTED))
async def test_example(name):
    async with Server() as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-W",
            "error",
            str(EXAMPLES / f"{name}.py"),
            env={**os.environ, "NATS_URL": server.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    assert process.returncode == 0, errors.decode()
    assert re.fullmatch(PRINTED[name], output.decode()), output.decode()
