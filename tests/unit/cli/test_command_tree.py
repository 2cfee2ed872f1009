"""The tree of commands: the help loads nothing, and every command's example is one that it takes."""

from __future__ import annotations

import shlex
import subprocess
import sys

import click
import pytest

from jetlake.cli.app import app
from jetlake.cli.command_table import COMMANDS
from jetlake.cli.shared_options import SharedCommand

_OTHERS = {"jetlake serve", "jetlake pipeline requeue"}
"""Commands whose help is their own, and another name of one."""
_WITHOUT_JSON = {
    "jetlake auth config",
    "jetlake catalog serve",
    "jetlake completion",
    "jetlake dashboard",
    "jetlake mcp",
    "jetlake schema info",
    "jetlake server run",
}


def commands(group=app, path="jetlake"):
    ctx = click.Context(group, info_name=path)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield f"{path} {name}", command
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_the_help_shows_every_command_and_loads_none():
    program = (
        "import sys; from jetlake.cli.app import app\n"
        "app.main(['--help'], standalone_mode=False)\n"
        "print([name for name in sys.modules if name.startswith('jetlake.cli.commands')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize(
    ("path", "command"), [pytest.param(*one, id=one[0]) for one in commands() if one[0] not in _OTHERS]
)
def test_a_command_has_an_example_that_it_takes(path, command):
    assert isinstance(command, SharedCommand)
    words = shlex.split(command.example.removeprefix('eval "$(').removesuffix(')"'))
    name = path.split()
    assert words[: len(name)] == name
    command.make_context(path, words[len(name) :], parent=click.Context(app))
    says_json = any("--json" in option.opts for option in command.params)
    assert says_json or path in _WITHOUT_JSON or path.startswith(("jetlake pipeline ", "jetlake server check "))
    assert "Example:" in command.get_help(click.Context(command, info_name=path))


@pytest.mark.parametrize(("path", "command"), [pytest.param(*one, id=one[0]) for one in commands()])
def test_no_option_has_the_name_of_a_shared_one(path, command):
    shared = {param.name for param in app.params}
    own = [param for param in command.params if param.name in shared and param not in app.params]
    # Click would give both of them the value of one.
    assert [param.name for param in own if not _replaces(param)] == []


def _replaces(param):
    taken = {name for option in app.params for name in option.opts}
    return not taken.isdisjoint(param.opts)
