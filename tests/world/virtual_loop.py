"""An asyncio loop without a selector: it waits in the world's scheduler, and connects through the world's network."""

import asyncio
import socket

__all__ = ["VirtualLoop"]


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop of one process of the world.

    Attributes:
        process: the process whose thread runs the loop.
    """

    def __init__(self, world, process):
        super().__init__()
        self.world = world
        self.process = process
        self._selector = self
        self._clock_resolution = 1e-6
        self._arrived = []
        self._is_woken = False
        self._sleeper = None
        process.loops.append(self)

    def time(self):
        return self.world.scheduler.now_ns / 1e9

    # What the base class asks of a selector

    def select(self, timeout):
        scheduler = self.world.scheduler
        if timeout == 0 or self._is_woken or self._arrived:
            scheduler.yield_turn()
        else:
            self._sleeper = scheduler.current
            scheduler.wait(timeout)
            self._sleeper = None
        self._is_woken = False
        arrived, self._arrived = self._arrived, []
        return arrived

    def _process_events(self, event_list):
        for callback, arguments in event_list:
            self.call_soon(callback, *arguments)

    def _write_to_self(self):
        self._is_woken = True
        if self._sleeper is not None:
            self.world.scheduler.wake(self._sleeper)

    def post(self, callback, *arguments):
        """Have the loop call this in its next turn, as a selector reports a socket; from anywhere in the world."""
        self._arrived.append((callback, arguments))
        self._write_to_self()

    # Threads

    def run_in_executor(self, executor, func, *args):
        future = self.create_future()

        def run():
            try:
                outcome, failed = func(*args), None
            except BaseException as error:
                outcome, failed = None, error
            try:
                self.call_soon_threadsafe(tell, outcome, failed)
            except RuntimeError:
                pass  # the loop has ended

        def tell(outcome, failed):
            if future.cancelled():
                return
            if failed is None:
                future.set_result(outcome)
            else:
                future.set_exception(failed)

        self.world.scheduler.spawn(self.process, f"executor:{getattr(func, '__name__', func)}", run)
        return future

    async def shutdown_default_executor(self, *_):
        pass

    # Sockets

    async def getaddrinfo(self, host, port, *, family=0, type=0, proto=0, flags=0):
        return await self.run_in_executor(None, socket.getaddrinfo, host, port)

    async def create_connection(
        self, protocol_factory, host=None, port=None, *, sock=None, ssl=None, server_hostname=None, **_
    ):
        if ssl:
            raise OSError("there is no TLS in this world")
        if sock is not None:
            raise OSError("a socket of the system in this world")
        addresses = [info[4][0] for info in await self.getaddrinfo(host, port)]
        failed = OSError("no address")
        for address in addresses:
            try:
                end = await self.world.network.dial(self, address, port)
            except OSError as error:
                failed = error
                continue
            return await end.attach(self, protocol_factory)
        raise failed

    async def create_server(self, protocol_factory, host=None, port=None, *, sock=None, ssl=None, **_):
        listener = sock if sock is not None else self.world.network.listen(host, port)
        return listener.serve(self, protocol_factory)

    def add_reader(self, *_):
        raise OSError("no file descriptors in this world")
