"""A server that listens nowhere, on a clock moved by hand."""

import asyncio

import pytest

from jetlake.server import Options, Server
from jetlake.testing.clock import ManualClock
from tests.support.shell import Client, Lines


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def make_server(clock):
    """A function that makes a server of these options."""

    def make(**options):
        server = Server(options=Options(**options), clock=clock, log=Lines())
        server.engine_loop.start(asyncio.get_running_loop())
        server.engine_loop.ticks = lambda: 0.0  # However slow the machine is, what was sent is handled in one turn.
        server.running = True
        clock.on_move(server.clock_moved)
        return server

    return make


@pytest.fixture
def connect():
    """A function that connects a client to a server."""
    return Client
