"""The key-value bucket on the server in which sink and source keep state that outlives their processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jetlake.client.tables.stream_api import StreamApi, ask
from jetlake.errors import (
    ApiError,
    NoRespondersError,
    PermissionsError,
    StreamNotFoundError,
    UnsupportedStreamError,
    WrongLastSequenceError,
)
from jetlake.model.enums import DiscardPolicy
from jetlake.model.publish import decode_pub_ack
from jetlake.model.stream import StreamConfig
from jetlake.spark.options.connection_options import ConnectionOptions

_AGE_MAX_S = 366 * 86_400


class Value(NamedTuple):
    """The value of a key, with the revision for a conditional write."""

    data: bytes
    revision: int


class KeyValue:
    """A bucket with one value a key, created by the first write; without a name it is empty and keeps nothing.

    Attributes:
        beside: the stream whose number of replicas the bucket gets when it is created; one replica when empty.
    """

    def __init__(self, settings: ConnectionOptions, bucket: str, beside: str = "") -> None:
        self.bucket = bucket
        self.beside = beside
        self._settings = settings
        self._stream = f"KV_{bucket}"

    def read(self, key: str) -> Value | None:
        """Return the value of that key; None when there is none."""
        if not self.bucket:
            return None

        def look(api: StreamApi) -> Value | None:
            try:
                message = api.last_message(self._stream, self._subject(key))
            except StreamNotFoundError:
                return None
            return Value(message.data, message.seq) if message is not None else None

        return ask(self._settings, look)

    def values(self, pattern: str) -> list[bytes]:
        """Return the values of all keys that match."""
        return ask(self._settings, lambda api: list(self._scan(api, pattern))) if self.bucket else []

    def _scan(self, api: StreamApi, pattern: str) -> Iterator[bytes]:
        sequence = 1
        try:
            while (message := api.next_message(self._stream, sequence, self._subject(pattern))) is not None:
                yield message.data
                sequence = message.seq + 1
        except StreamNotFoundError:
            return

    def write(self, key: str, value: bytes, revision: int | None = None) -> bool:
        """Set the value of that key; a missing bucket is created.

        Args:
            revision: the revision that the key must have, 0 for none; None writes in any case.

        Returns:
            Whether the key had that revision, and the value is written.

        Raises:
            UnsupportedStreamError: the login may not create or write the bucket.
        """
        if not self.bucket:
            return True
        header = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % (revision or 0)
        header = header if revision is not None else b""

        def write(api: StreamApi) -> bool:
            subject, request = self._subject(key).encode(), api.connection.request
            try:
                try:
                    answer = request(subject, value, api.timeout_s, header=header)
                except NoRespondersError:
                    self._create(api)
                    answer = request(subject, value, api.timeout_s, header=header)
                decode_pub_ack(answer.payload)
                return True
            except WrongLastSequenceError:
                return False
            except (ApiError, PermissionsError, NoRespondersError) as error:
                raise UnsupportedStreamError(
                    f"{key} could not be written to the key-value bucket {self.bucket} ({error}): grant the "
                    "permission, name another bucket with option ledger, or set ledger=none to do without"
                ) from error

        return ask(self._settings, write)

    def remove(self, pattern: str) -> None:
        """Remove the values of all keys that match; values that cannot be removed stay, and do no harm."""

        def purge(api: StreamApi) -> None:
            try:
                api.purge(self._stream, 0, self._subject(pattern))
            except (ApiError, PermissionsError, NoRespondersError):
                return

        if self.bucket:
            ask(self._settings, purge)

    def _subject(self, key: str) -> str:
        return f"$KV.{self.bucket}.{key}"

    def _create(self, api: StreamApi) -> None:
        replicas = 1
        if self.beside:
            try:
                replicas = max(api.stream_info(self.beside).config.num_replicas, 1)
            except (ApiError, PermissionsError):
                # A login that may publish need not be allowed to read the stream's configuration.
                replicas = 1
        api.create_stream(self._config(replicas))

    def _config(self, replicas: int) -> StreamConfig:
        """Return a bucket as every key-value client knows it, with one value a key, kept for a year after its write."""
        return StreamConfig.of(
            self._stream,
            description="finished batches of Spark queries",
            subjects=[f"$KV.{self.bucket}.>"],
            max_msgs_per_subject=1,
            max_age=_AGE_MAX_S,
            num_replicas=replicas,
            discard=DiscardPolicy.NEW,
            deny_delete=True,
            allow_rollup_hdrs=True,
            allow_direct=True,
        )
