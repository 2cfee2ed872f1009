"""A TCP proxy before the route port of one server, which knows who dials and can cut servers off from each other."""

import asyncio
import re

_NAME = re.compile(rb'"(?:server_name|name)":"(n\d+)"')


class RouteProxy:
    """Passes the routes that other servers open to one server.

    Args:
        name: the name of the server behind the proxy.
        port: where the proxy listens.
        target_port: where the server listens.
    """

    def __init__(self, name, port, target_port):
        self.name = name
        self.port = port
        self._target_port = target_port
        self._server = None
        self._cut_off = set()
        # The open routes, each with the name of the server that dialled, once it has said it.
        self._routes = {}

    async def start(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def stop(self):
        if self._server is not None:
            self._server.close()
            self._break(lambda _: True)
            await asyncio.gather(*self._routes, return_exceptions=True)

    def cut_off(self, name):
        """Close the routes between this server and the named one, and let none be opened."""
        self._cut_off.add(name)
        self._break(lambda caller: caller == name or name == self.name)

    def restore(self, name):
        self._cut_off.discard(name)

    def _break(self, is_meant):
        for task, caller in list(self._routes.items()):
            if is_meant(caller[0]):
                task.cancel()

    async def _accept(self, reader, writer):
        task = asyncio.current_task()
        caller = [""]
        self._routes[task] = caller
        try:
            if self.name not in self._cut_off:
                await self._pass(reader, writer, caller)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            del self._routes[task]
            writer.transport.abort()

    async def _pass(self, reader, writer, caller):
        there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            await asyncio.gather(self._copy(reader, back, caller), self._copy(there, writer, None))
        finally:
            back.transport.abort()

    async def _copy(self, reader, writer, caller):
        head = b""
        while data := await reader.read(65536):
            if caller is not None and not caller[0]:
                head += data
                found = _NAME.search(head)
                caller[0] = found[1].decode() if found else ""
                if caller[0] in self._cut_off:
                    break
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError
