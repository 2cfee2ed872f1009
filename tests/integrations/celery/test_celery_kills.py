"""Real Celery workers and the server are killed; every task runs all the same."""

import os
import socket
import subprocess
import sys
import time

import pytest

from jetlake.integrations.celery.backend import close_connections
from jetlake.testing.ports import free_port
from tests.integrations.celery import kills


@pytest.fixture
def site(tmp_path, monkeypatch):
    with kills.Site(tmp_path) as site:
        for name, value in site.environment.items():
            if name.startswith("CELERY_TEST_"):
                monkeypatch.setenv(name, value)
        yield site
        close_connections()


def test_no_task_is_lost_when_a_worker_and_the_server_are_killed(site):
    from tests.integrations.celery.shop import app

    app.conf.update(broker_url=site.url, result_backend=site.url)
    outcome = kills.survive(site, kills=2, tasks=40)
    app.pool.force_close_all()
    assert outcome["kills_of_workers"] and outcome["kills_of_the_server"]


PROGRAM = """
import os
import jetlake.integrations.celery as on_jetstream
from celery import Celery

app = Celery("development", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
on_jetstream.development_server(app, "data")


@app.task
def double(number):
    return 2 * number


if __name__ == "__main__":
    print(double.delay(21).get(timeout=60))
"""


def test_a_worker_brings_its_server_along_and_stops_it(tmp_path):
    (tmp_path / "development.py").write_text(PROGRAM)
    port = free_port()
    environment = {**os.environ, "BROKER": f"jetstream://localhost:{port}"}
    start = [sys.executable, "-m", "celery", "-A", "development", "worker", "-P", "threads", "-c", "1"]
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(start, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert worker.poll() is None, (tmp_path / "worker.log").read_text()
            time.sleep(0.05)
        asked = subprocess.run(
            [sys.executable, "development.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert asked.stdout == "42\n", asked.stderr
    finally:
        worker.terminate()
        worker.wait()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port))
