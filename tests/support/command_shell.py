"""Commands run as in a shell, for the tests of the command line."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from asyncio.subprocess import PIPE

from click.testing import CliRunner

from jetlake.cli.app import app


class Shell:
    """Runs commands as a user would, beside the loop that the server may run in."""

    def __init__(self, url):
        self.url = url

    async def run(self, line, *, status=0, stdin=None):
        """The output of a command, written as in a shell."""
        arguments = ["-s", self.url, *shlex.split(line)]
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments, input=stdin, prog_name="jetlake")
        assert result.exit_code == status, result.output
        assert "Traceback" not in result.output
        return result.output

    def words(self, line):
        """The arguments of a process that runs a command."""
        return [sys.executable, "-m", "jetlake", "-s", self.url, *shlex.split(line)]

    async def start(self, line, ready):
        """Start a command that goes on, in a process of its own; it has said `ready` on stderr."""
        process = await asyncio.create_subprocess_exec(*self.words(line), stdout=PIPE, stderr=PIPE)
        said = b""
        while ready not in said:
            line = await process.stderr.readline()
            assert line, said
            said += line
        return process

    async def answer(self, line, *answers, status=0, screen=False):
        """The output of a command, where these lines are typed on a terminal; and what it asked.

        With `screen` the output is on the terminal too; it must be short.
        """
        import pty  # not on every system

        keyboard, terminal = pty.openpty()
        with os.fdopen(keyboard, "r+b", buffering=0) as typed:
            with os.fdopen(terminal, "r+b", buffering=0) as slave:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "jetlake", "-s", self.url, *shlex.split(line)),
                    stdin=slave,
                    stdout=slave if screen else PIPE,
                    stderr=PIPE,
                )
            typed.write("".join(f"{answer}\n" for answer in answers).encode())
            out, said = await process.communicate()
            shown = b"".join(_until_closed(typed)) if screen else out
        assert process.returncode == status, said
        return shown.decode(), said.decode()

    async def json(self, line):
        return json.loads(await self.run(line + " --json"))


def _until_closed(terminal):
    """What was written on a terminal that its program has closed."""
    while True:
        try:
            yield terminal.read(65536)
        except OSError:
            return


async def output_of(process):
    """What the command printed until it ended by itself."""
    out, said = await process.communicate()
    assert process.returncode == 0, said
    return out.decode()
