"""File descriptors that run out: clients are turned away before the store has none left."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

JETLAKE = Path(sys.executable).parent / "jetlake"


@pytest.mark.parametrize(("limit", "connections"), [(400, 58), (90, 16), (72, 16)])
def test_clients_leave_the_store_its_descriptors(tmp_path, limit, connections):
    command = f"ulimit -n {limit}; exec {JETLAKE} serve -a 127.0.0.1 -p -1 -js -sd {tmp_path}"
    server = subprocess.Popen(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    clients = []
    try:
        log = ""
        while "Server is ready" not in log:
            log += server.stderr.readline()
        assert f"Limited to {connections} connections" in log
        port = int(re.search(r"client connections on 127\.0\.0\.1:(\d+)", log)[1])
        first = Client(port)
        clients += [first, *(Client(port) for _ in range(limit + 50))]
        turned_away = [client for client in clients if client.is_turned_away()]
        assert len(turned_away) == len(clients) - connections
        # A stream for each of them needs more files than the clients left.
        for number in range(30):
            config = json.dumps({"name": f"S{number}", "subjects": [f"s.{number}"]})
            assert "error" not in first.ask(f"$JS.API.STREAM.CREATE.S{number}", config)
            stored = first.ask(f"s.{number}", "x")
            assert stored["seq"] == 1, stored
        # Everybody at once, so that as many streams are synced at a time as ever are.
        taken = [client for client in clients if client not in turned_away]
        for turn in range(4):
            for client in taken[:16]:
                client.send_to_all(30)
            for client in taken[:16]:
                answers = client.answers(30)
                assert all("seq" in answer for answer in answers), (turn, answers)
    finally:
        for client in clients:
            client.socket.close()
        server.terminate()
        server.communicate(timeout=30)
    assert server.returncode == 0


class Client:
    """A connection that says no more than it must."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._file = self.socket.makefile("rb")
        self._inbox = b"inbox.%d" % self.socket.getsockname()[1]
        self._file.readline()  # INFO
        self.socket.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')

    def is_turned_away(self):
        try:
            if self._file.readline() == b"PONG\r\n":
                return False
            self._file.read()  # Until the server has closed its end, and has the descriptor back.
        except ConnectionError:
            pass
        return True

    def send_to_all(self, count):
        """Publish to so many streams with one write."""
        data = b"".join(b"PUB s.%d %b 1\r\nx\r\n" % (number, self._inbox) for number in range(count))
        self.socket.sendall(b"SUB %b 9\r\n" % self._inbox + data)

    def answers(self, count):
        """What comes back to `send_to_all`."""
        found = [self._read_answer() for _ in range(count)]
        self.socket.sendall(b"UNSUB 9\r\n")
        return found

    def ask(self, subject, body):
        """The JSON that comes back."""
        self.socket.sendall(
            b"SUB reply 1\r\nUNSUB 1 1\r\nPUB %b reply %d\r\n%b\r\n" % (subject.encode(), len(body), body.encode())
        )
        return self._read_answer()

    def _read_answer(self):
        while not (line := self._file.readline()).startswith(b"MSG"):
            assert line, "the server closed the connection"  # whatever else comes is a PING
        return json.loads(self._file.readline())
