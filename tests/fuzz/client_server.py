"""The server of the client fuzz: a process of its own that any thread may restart, and what it says of connections."""

import asyncio
import json
import threading
import time
import urllib.request

from tests.support.servers import make_server

# Small limits, so that histories reach them.
CONFIG = """
authorization {
  users = [ { user: u, password: p, permissions: { publish: { deny: "denied.>" }, subscribe: { deny: "denied.>" } } } ]
}
jetstream { store_dir: "STORE_DIR" }
"""


class FuzzedServer:
    """A server that is restarted while clients use it."""

    def __init__(self, kind):
        self._server = make_server(kind, CONFIG, process=True)
        self._lock = threading.Lock()
        asyncio.run(self._server.start())

    @property
    def url(self):
        return f"nats://u:p@127.0.0.1:{self._server.port}"

    def restart(self, pause_s, *, kill):
        """End it, cleanly or by a kill, and start it again on its port."""
        with self._lock:
            asyncio.run(self._server.kill() if kill else self._server.stop())
            time.sleep(pause_s)
            asyncio.run(self._server.start())

    def connections(self, name):
        """How many clients of that name are connected."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._server.monitor_port}/connz?limit=1000") as answer:
            return sum(one.get("name") == name for one in json.load(answer)["connections"])

    def discard(self):
        asyncio.run(self._server.discard())
