"""One Spark session and one server for the whole run; every test has streams of its own."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jetlake.testing import ports

BIN = Path(sys.executable).parent

# A Java that lives for some seconds is quicker without its second compiler and without the threads of its collector.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# Every process that a test starts inherits these: they reach the driver, the launcher before it, masters and workers.
for variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(variable, QUICK_JAVA)

SESSION_CONFIG = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.pollingDelay": "10ms",
    # Spark's default starts a process for every file of a checkpoint that it renames; processes of their own keep it.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.session.timeZone": "UTC",
}


class Admin:
    """A bare client of the tests' own, so that nothing of the package under test prepares or checks its data."""

    def __init__(self, port: int, **login: str) -> None:
        self._port, self._login = port, login
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._buffer = b""
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1, **login}
        self._socket.sendall(b"CONNECT %b\r\nSUB answer.* 1\r\nPING\r\n" % json.dumps(options).encode())
        while self._line() != b"PONG":
            pass

    def close(self) -> None:
        self._socket.close()

    def _fill(self) -> None:
        data = self._socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._fill()
        line, self._buffer = self._buffer.split(b"\r\n", 1)
        if line.startswith(b"-ERR"):
            raise AssertionError(line.decode())
        return line

    def _message(self) -> tuple[bytes, bytes]:
        """Subject and payload of the next message, headers cut off."""
        while True:
            line = self._line()
            words = line.split(b" ")
            if words[0] == b"PING":
                self._socket.sendall(b"PONG\r\n")
            if words[0] not in (b"MSG", b"HMSG"):
                continue
            size = int(words[-1])
            while len(self._buffer) < size + 2:
                self._fill()
            body, self._buffer = self._buffer[:size], self._buffer[size + 2 :]
            return words[1], body[int(words[-2]) if words[0] == b"HMSG" else 0 :]

    def request(self, subject: str, body: Any = None) -> dict[str, Any]:
        payload = b"" if body is None else json.dumps(body).encode()
        self._socket.sendall(b"PUB %b answer.x %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
        try:
            answer = self._message()[1]
        except TimeoutError:
            raise AssertionError(f"no answer to {subject} in a minute; {self._explain(subject)}") from None
        return json.loads(answer) if answer else {}

    def _explain(self, subject: str) -> str:
        """What the server says of the consumer that a request without an answer was for."""
        if ".CONSUMER.MSG.NEXT." not in subject:
            return "the server accepts connections" if Admin(self._port, **self._login) else ""
        info = subject.replace(".MSG.NEXT.", ".INFO.")
        return f"its consumer: {Admin(self._port, **self._login).request(info)}"

    def send(self, subject: str, payload: bytes) -> None:
        """Publish a message that nobody answers."""
        self._socket.sendall(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))

    def api(self, verb: str, body: Any = None) -> dict[str, Any]:
        answer = self.request(f"$JS.API.{verb}", body)
        if "error" in answer:
            raise AssertionError(f"{verb}: {answer['error']}")
        return answer

    def create_stream(self, name: str, **config: Any) -> dict[str, Any]:
        return self.api(
            f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "allow_direct": True, **config}
        )

    def state(self, name: str) -> dict[str, Any]:
        return self.api(f"STREAM.INFO.{name}")["state"]

    def publish(self, messages: list[tuple[str, bytes] | tuple[str, bytes, dict[str, str]]]) -> list[dict[str, Any]]:
        """Publish and wait for every acknowledgement."""
        acks: list[dict[str, Any]] = []
        for chunk in itertools.batched(messages, 2000) if hasattr(itertools, "batched") else _chunks(messages, 2000):
            frames = []
            for subject, payload, *headers in chunk:
                if headers:
                    block = (
                        "NATS/1.0\r\n" + "".join(f"{key}: {value}\r\n" for key, value in headers[0].items()) + "\r\n"
                    )
                    header = block.encode()
                    frames.append(
                        b"HPUB %b answer.p %d %d\r\n%b%b\r\n"
                        % (subject.encode(), len(header), len(header) + len(payload), header, payload)
                    )
                else:
                    frames.append(b"PUB %b answer.p %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
            self._socket.sendall(b"".join(frames))
            acks += [json.loads(self._message()[1]) for _ in chunk]
        return acks

    def publish_block(self, subject: str, block: bytes, payload: bytes) -> None:
        """Publish with a header block as it is."""
        sizes = (len(block), len(block) + len(payload))
        self._socket.sendall(b"HPUB %b answer.p %d %d\r\n%b%b\r\n" % (subject.encode(), *sizes, block, payload))
        self._message()

    def fill(self, stream: str, count: int, start: int = 0, subjects: int = 3) -> None:
        """Publish `count` numbered messages, spread over some subjects."""
        numbers = range(start, start + count)
        self.publish([(f"{stream}.{number % subjects}", b"%d" % number) for number in numbers])

    def messages(self, stream: str) -> list[dict[str, Any]]:
        """All messages of a stream, asked one by one."""
        state = self.state(stream)
        found = []
        for sequence in range(state["first_seq"], state["last_seq"] + 1):
            answer = self.request(f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": sequence})
            if "message" in answer:
                found.append(answer["message"])
        return found


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


class ServerProcess:
    """A server in a process of its own, which a test may stop, kill and start again."""

    def __init__(self, kind: str, *arguments: str) -> None:
        self.kind = kind
        self.port = ports.free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = tempfile.mkdtemp(prefix="jetlake-test-")
        self._arguments = arguments
        self._admins: list[Admin] = []
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [str(BIN / "nats-server")] if self.kind == "nats-server" else [str(BIN / "jetlake"), "serve"]
        with Path(self._folder, "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-js", "-sd", self._folder, "-a", "127.0.0.1", "-p", str(self.port), *self._arguments],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.02)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def remove(self) -> None:
        for admin in self._admins:
            admin.close()
        self.kill()
        defects = [line for line in self.log().splitlines() if "internal error" in line]
        shutil.rmtree(self._folder, ignore_errors=True)
        assert not defects, "the server reported internal errors:\n" + "\n".join(defects)

    def log(self) -> str:
        """What the server has written so far."""
        return Path(self._folder, "log").read_text(errors="replace")

    def admin(self, **login: str) -> Admin:
        self._admins.append(Admin(self.port, **login))
        return self._admins[-1]


KINDS = ["nats-server", "embedded"]


@pytest.fixture(scope="session", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    process = ServerProcess(request.param)
    yield process
    process.remove()


@pytest.fixture
def both_servers() -> Iterator[list[ServerProcess]]:
    """One server of each kind, of a test's own."""
    processes = [ServerProcess(kind) for kind in KINDS]
    yield processes
    for process in processes:
        process.remove()


@pytest.fixture(params=KINDS)
def start_server(request: pytest.FixtureRequest) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers of a test's own, with flags."""
    started: list[ServerProcess] = []

    def start(*arguments: str) -> ServerProcess:
        started.append(ServerProcess(request.param, *arguments))
        return started[-1]

    yield start
    for process in started:
        process.remove()


@pytest.fixture
def admin(server: ServerProcess) -> Iterator[Admin]:
    """A bare client of the shared server."""
    client = Admin(server.port)
    yield client
    client.close()


_numbers = itertools.count(1)


@pytest.fixture
def stream() -> str:
    """A name that no other test uses."""
    return f"S{next(_numbers)}"


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is left in the user's own folder; processes that tests start inherit this."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def spark_home() -> str:
    """Where Spark's Python processes start quickly; all that are started from here use it."""
    from jetlake.spark.session import use_installed_pyspark

    use_installed_pyspark()
    return os.environ["SPARK_HOME"]


@pytest.fixture(scope="session")
def spark(spark_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,3]").appName("jetlake-tests")
    for key, value in SESSION_CONFIG.items():
        builder = builder.config(key, value)
    folder = tmp_path_factory.mktemp("spark")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Finds ports that nobody listens on."""
    return ports.free_port


@pytest.fixture(scope="session")
def session_config() -> dict[str, str]:
    """Spark's settings for a machine with little to spare."""
    return SESSION_CONFIG


@pytest.fixture
def run(server: ServerProcess) -> Any:
    """Runs a streaming query over all that is there, and returns its rows."""

    def run(spark: Any, checkpoint: Path, into: Path, columns: list[str] | None = None, **options: Any) -> Any:
        reader = spark.readStream.format("jetstream").option("servers", server.url).options(**options)
        frame = reader.load()
        query = (
            (frame.select(*columns) if columns else frame)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(checkpoint))
            .option("path", str(into))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        return query

    return run
