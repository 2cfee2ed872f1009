"""`manage.py jetlake_worker`: calls the project's workers until SIGTERM or Ctrl-C, then lets them finish."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections
from django.utils.module_loading import autodiscover_modules

from jetlake.blocking import Message, Reading
from jetlake.errors import JetlakeError, NotFoundError, RequestTimeoutError
from jetlake.integrations.django.connections import close, jetstream
from jetlake.integrations.django.workers import Worker, registered

_LOOK_S = 0.5


class Command(BaseCommand):
    """Reads the consumers of all functions that are marked with `@worker`."""

    help = "Call the functions marked with @worker with the messages of their consumers, until SIGTERM or Ctrl-C."

    def handle(self, *_: Any, **__: Any) -> None:
        """Run the workers.

        Raises:
            CommandError: there is no worker or consumer, the setting JETLAKE makes no sense, or a read ended by itself.
        """
        autodiscover_modules("jetstream")
        if not registered:
            raise CommandError("no function is marked with @worker: mark one in the module jetstream.py of an app")
        stopping = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        try:
            self._run(stopping)
        except (JetlakeError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from None
        finally:
            close()

    def _run(self, stopping: threading.Event) -> None:
        js = jetstream()
        with ExitStack() as reads:
            readings: list[Reading] = []
            for worker in registered:
                try:
                    consumer = js.consumer(worker.stream, worker.consumer)
                except NotFoundError:
                    raise CommandError(
                        f"there is no consumer {worker.consumer!r} of stream {worker.stream!r}: create it first"
                    ) from None
                report = partial(self._report, worker)
                reading = consumer.consume(partial(_handle, worker), on_error=report, **worker.options)
                readings.append(reading.start())
                # Messages that no function has begun go back to the server; functions that run finish.
                reads.callback(reading.stop)
                self.stdout.write(f"reading {worker.stream}/{worker.consumer}")
            self.stdout.flush()
            while not stopping.wait(_LOOK_S):
                for reading in readings:
                    if reading.is_stopped:
                        _raise_why(reading)
        self.stdout.write("stopped")

    def _report(self, worker: Worker, error: Exception) -> None:
        self.stderr.write(f"a message of {worker.stream}/{worker.consumer} failed: {error!r}")


def _handle(worker: Worker, message: Message) -> None:
    close_old_connections()
    try:
        worker.function(message)
    finally:
        close_old_connections()
    message.ack()


def _raise_why(reading: Reading) -> None:
    try:
        reading.wait(_LOOK_S)
    except RequestTimeoutError:
        return
    raise CommandError("a read ended")
