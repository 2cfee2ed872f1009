"""The result backend `jetstream://`: results in a key-value bucket, which the server expires."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import ImproperlyConfigured
from kombu.exceptions import EncodeError
from kombu.utils.encoding import bytes_to_str, str_to_bytes
from kombu.utils.url import parse_url

import jetlake.blocking
from jetlake.errors import (
    ClientConnectionError,
    ConfigError,
    InvalidOptionError,
    KeyExistsError,
    KeyNotFoundError,
    NoRespondersError,
    NotFoundError,
    RequestTimeoutError,
    WrongLastSequenceError,
)
from jetlake.integrations.celery.queues import QueueOptions, connect_options, server_url, token

T = TypeVar("T")

_KNOWN_OPTIONS = {"connect", "global_keyprefix", "replicas"}
_URL_PARTS = {"hostname", "password", "port", "ssl", "transport", "userid", "virtual_host"}
_RETRY_FOR_S = 60.0
_RETRY_WAIT_S = 0.2
_TRANSIENT = (ClientConnectionError, RequestTimeoutError, NoRespondersError)


# One client for an address: Celery makes a backend for each thread, and closes none.
_clients: dict[tuple[str, str], jetlake.blocking.Client] = {}
_opening = threading.Lock()


def _client(address: str, options: dict[str, Any]) -> jetlake.blocking.Client:
    """Return this process's client for an address."""
    key = address, repr(sorted(options.items()))
    with _opening:
        client = _clients.get(key)
        # A client is closed in a process that was forked from the one that made it.
        if client is None or client.is_closed:
            client = _clients[key] = jetlake.blocking.connect(address, **{"name": "celery-results", **options})
        return client


def close_connections() -> None:
    """Close this process's connections to results; a backend that is used afterwards connects again."""
    with _opening:
        clients = list(_clients.values())
        _clients.clear()
    for client in clients:
        if not client.is_closed:
            client.close()


def _forked() -> None:
    global _opening
    _opening = threading.Lock()  # A thread of the parent may have held it at the moment of the fork.


atexit.register(close_connections)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _name(key: str | bytes) -> str:
    """Return a key as the bucket takes it: a task id may have any characters."""
    return token(bytes_to_str(key))


def _number_of(counter: str, part: str) -> str:
    """Return the key of the number that a part of a chord was counted as."""
    return f"{counter}.{token(part)}"


class JetStreamBackend(KeyValueStoreBackend):
    """Results of tasks in the bucket `<prefix>-results`, where the path of the URL is the prefix.

    An operation that fails because the server cannot be reached is repeated for a minute. `result_expires`, or
    `result_chord_expires` where it is longer, is the age at which the server removes results.
    `result_backend_transport_options` takes `replicas`, `global_keyprefix`, and `connect`, the options of
    `jetlake.connect`.
    """

    supports_autoexpire = True
    implements_incr = True

    def __init__(self, url: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, url=url, **kwargs)
        parts = parse_url(url or "jetstream://")
        given = self.app.conf.get("result_backend_transport_options", {})
        unknown = [*sorted(set(given) - _KNOWN_OPTIONS), *sorted(set(parts) - _URL_PARTS)]
        if unknown:
            raise ImproperlyConfigured(
                f"result_backend_transport_options or the URL has {unknown[0]!r}, which jetstream:// does not know; "
                f"the options are {', '.join(sorted(_KNOWN_OPTIONS))}"
            )
        if isinstance(parts.get("ssl"), dict):
            raise ImproperlyConfigured(
                "result_backend: give certificates as an SSL context: "
                "result_backend_transport_options={'connect': {'tls': context}}"
            )
        try:
            options = QueueOptions.of(parts["virtual_host"], {key: given[key] for key in given if key == "replicas"})
            self._connect = connect_options(given.get("connect", {}))
        except ConfigError as error:
            raise ImproperlyConfigured(f"result_backend: {error}") from None
        self._options = options
        self._address = server_url(
            parts["hostname"], parts["port"], parts["userid"], parts["password"], tls=bool(parts.get("ssl"))
        )
        self._part = ""  # The task whose end is counted, while it is.
        self._bucket: jetlake.blocking.KeyValue | None = None
        self._of: jetlake.blocking.Client | None = None

    # The keys of Celery's base class

    def get(self, key: str | bytes) -> bytes | None:
        """Return a key's value, or None."""
        entry = self._try(lambda bucket: bucket.get(_name(key), default=None))
        return None if entry is None else bytes(entry.value)

    def mget(self, keys: Iterable[str | bytes]) -> list[bytes | None]:
        """Return the values of keys."""
        return [self.get(key) for key in keys]

    def set(self, key: str | bytes, value: str | bytes) -> None:
        """Store a value, which is on disk when this returns.

        Raises:
            EncodeError: it is larger than the server takes; Celery then stores a failure of the task that says so.
        """
        try:
            self._try(lambda bucket: bucket.put(_name(key), str_to_bytes(value)))
        except InvalidOptionError as error:
            raise EncodeError(f"the result cannot be stored: {error}") from None

    def delete(self, key: str | bytes) -> None:
        """Delete a key; one that is not there is fine."""
        self._try(lambda bucket: bucket.purge(_name(key)))

    def incr(self, key: str | bytes) -> int:
        """Add one to a counter, and return it; no two callers get the same number.

        The counter of a chord names the part that was counted last, and each part has a key with its number, which the
        next one writes where the worker of the last has died before it could. So a part that runs again gets its number
        again: a chord ends when all its parts have, and does so however often they ran.
        """
        name, part = _name(key), self._part

        def add(bucket: jetlake.blocking.KeyValue) -> int:
            while True:
                known = bucket.get(_number_of(name, part), leader=True, default=None) if part else None
                if known is not None:
                    return int(known.value)
                entry = bucket.get(name, leader=True, default=None)
                number, _, last = ("0" if entry is None else entry.value.decode()).partition(" ")
                if last and bucket.get(_number_of(name, last), leader=True, default=None) is None:
                    bucket.put(_number_of(name, last), number.encode())
                    continue
                count = int(number) + 1
                try:
                    if entry is None:
                        bucket.create(name, f"{count} {part}".encode())
                    else:
                        bucket.update(name, f"{count} {part}".encode(), entry.revision)
                except (WrongLastSequenceError, KeyExistsError):
                    continue  # Another worker was faster.
                if part:
                    bucket.put(_number_of(name, part), str(count).encode())
                return count

        return self._try(add)

    def on_chord_part_return(self, request: Any, state: Any, result: Any, **kwargs: Any) -> None:
        """Count a part of a chord that has ended, and send the chord's body after the last."""
        self._part = str(request.id)
        try:
            if request.group and self._is_over(request.group):
                return
            super().on_chord_part_return(request, state, result, **kwargs)
        finally:
            self._part = ""

    def _is_over(self, group: str) -> bool:
        """Whether a chord has ended that this part was counted for: the part runs again, and nothing waits for it."""
        counted = self._try(
            lambda bucket: bucket.get(_number_of(_name(self.get_key_for_chord(group)), self._part), default=None)
        )
        return counted is not None and self.get(self.get_key_for_group(group)) is None

    def expire(self, key: str | bytes, value: float) -> None:
        """Do nothing: the bucket's own age limit removes the key."""

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Whether Celery may repeat an operation that failed so."""
        return isinstance(exc, _TRANSIENT)

    # The connection

    def _try(self, operation: Callable[[jetlake.blocking.KeyValue], T]) -> T:
        deadline = time.monotonic() + _RETRY_FOR_S
        while True:
            try:
                return operation(self._opened())
            except KeyNotFoundError:
                raise
            except (*_TRANSIENT, NotFoundError) as error:
                if isinstance(error, NotFoundError):
                    self._bucket = None  # The bucket was deleted: create it again.
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_RETRY_WAIT_S)

    def _opened(self) -> jetlake.blocking.KeyValue:
        client = _client(self._address, self._connect)
        if self._bucket is None or self._of is not client:
            # Parts of a chord may have to be kept for longer; before Celery 5.7 there is no such option.
            expires = getattr(self, "_chord_result_expires", self.expires)
            options = {"ttl": expires} if expires else {}
            self._bucket = client.jetstream().create_or_update_key_value(
                f"{self._options.prefix}-results",
                num_replicas=self._options.replicas,
                description="results of Celery's tasks",
                **options,
            )
            self._of = client
        return self._bucket

    def cleanup(self) -> None:
        """Do nothing: the server removes old results."""

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url})
