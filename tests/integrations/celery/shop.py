"""The Celery app of these tests: tasks write what they did into a file, a line each time they run."""

import os
import time
from datetime import UTC, datetime

from celery import Celery
from celery.exceptions import Reject

import jetlake.integrations.celery  # noqa: F401  (makes jetstream:// known)

URL = os.environ.get("CELERY_TEST_URL", "jetstream://127.0.0.1:1/nowhere")
app = Celery("shop", broker=URL, backend=URL)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    # The first publish of a producer waits this long for the server to come up; Celery's default is 4 s.
    broker_transport_options={"visibility_timeout": 2, "connect_retries_timeout": 120},
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_publish_retry_policy={"max_retries": None, "interval_max": 0.5},
    worker_prefetch_multiplier=2,
    # The body of a chord waits this long for results that are there, on a server that is being started; 3 s by default.
    result_chord_join_timeout=60,
)


def note(request, what):
    """Append a line, which is written at once and whole, also when several processes do it."""
    redelivered = int(bool(request.delivery_info.get("redelivered")))
    line = f"{what} {redelivered} {request.retries} {time.time()}\n"
    handle = os.open(os.environ["CELERY_TEST_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())
    os.close(handle)


@app.task(bind=True)
def add(self, first, second, wait_s=0.0):
    time.sleep(wait_s)
    note(self.request, f"add-{first}")
    return first + second


@app.task(bind=True, max_retries=None)
def third_time(self, name):
    note(self.request, f"third_time-{name}")
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return name


@app.task(bind=True)
def at_time(self, name, due):
    note(self.request, f"at_time-{name}")
    return datetime.now(UTC).timestamp() >= due


@app.task(bind=True)
def refuse(self, name):
    note(self.request, f"refuse-{name}")
    raise Reject("never again", requeue=False)


@app.task(bind=True)
def part(self, name, amount):
    note(self.request, f"part-{name}")
    return amount


@app.task(bind=True)
def total(self, amounts, name):
    note(self.request, f"total-{name}")
    return sum(amounts)
