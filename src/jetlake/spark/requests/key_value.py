"""Values by key on the server: the bucket in which sink and source keep what must outlive their processes."""

from __future__ import annotations

from collections.abc import Iterator

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.requests.patience import retrying
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import ApiError, NoRespondersError, PermissionsError, StreamNotFoundError, UnsupportedStreamError
from jetlake.model.enums import DiscardPolicy
from jetlake.model.publish import decode_pub_ack
from jetlake.model.stream import StreamConfig
from jetlake.spark.options.connection_options import ConnectionOptions

__all__ = ["KeyValue"]

_AGE_MAX_S = 366 * 86_400


class KeyValue:
    """A bucket with one value a key, made when it is first written; knows and keeps nothing when it has no name.

    Attributes:
        beside: the stream whose number of replicas the bucket gets when it is made; one when nobody says.
    """

    def __init__(self, settings: ConnectionOptions, bucket: str, beside: str = "") -> None:
        self.bucket = bucket
        self.beside = beside
        self._settings = settings
        self._stream = f"KV_{bucket}"

    def read(self, key: str) -> bytes | None:
        """Return the value of that key; None when there is none."""
        if not self.bucket:
            return None

        def look(connection: SocketConnection) -> bytes | None:
            try:
                message = self._api(connection).last_message(self._stream, self._subject(key))
            except StreamNotFoundError:
                return None
            return message.data if message is not None else None

        return retrying(self._settings, look)

    def values(self, pattern: str) -> list[bytes]:
        """Return the values of all keys that match."""
        return retrying(self._settings, lambda connection: list(self._scan(connection, pattern))) if self.bucket else []

    def _scan(self, connection: SocketConnection, pattern: str) -> Iterator[bytes]:
        api, sequence = self._api(connection), 1
        try:
            while (message := api.next_message(self._stream, sequence, self._subject(pattern))) is not None:
                yield message.data
                sequence = message.seq + 1
        except StreamNotFoundError:
            return

    def write(self, key: str, value: bytes) -> None:
        """Set the value of that key; a bucket that is missing is made.

        Raises:
            UnsupportedStreamError: the login may not make or write the bucket.
        """
        if not self.bucket:
            return

        def write(connection: SocketConnection) -> None:
            subject = self._subject(key).encode()
            try:
                try:
                    answer = connection.request(subject, value, self._settings.request_timeout_s)
                except NoRespondersError:
                    self._create(connection)
                    answer = connection.request(subject, value, self._settings.request_timeout_s)
                decode_pub_ack(answer.payload)
            except (ApiError, PermissionsError, NoRespondersError) as error:
                raise UnsupportedStreamError(
                    f"{key} could not be noted in the key-value bucket {self.bucket} ({error}): allow it, name another "
                    "bucket with option ledger, or do without by ledger=none"
                ) from error

        retrying(self._settings, write)

    def remove(self, pattern: str) -> None:
        """Remove the values of all keys that match; what cannot be removed stays, and does no harm."""

        def purge(connection: SocketConnection) -> None:
            try:
                self._api(connection).purge(self._stream, 0, self._subject(pattern))
            except (ApiError, PermissionsError, NoRespondersError):
                return

        if self.bucket:
            retrying(self._settings, purge)

    def _api(self, connection: SocketConnection) -> StreamApi:
        return StreamApi.through(connection, self._settings)

    def _subject(self, key: str) -> str:
        return f"$KV.{self.bucket}.{key}"

    def _create(self, connection: SocketConnection) -> None:
        api, replicas = self._api(connection), 1
        if self.beside:
            try:
                replicas = max(api.stream_info(self.beside).config.num_replicas, 1)
            except (ApiError, PermissionsError):
                # Whoever may publish need not be allowed to look at the stream.
                replicas = 1
        api.create_stream(self._config(replicas))

    def _config(self, replicas: int) -> StreamConfig:
        """Give a bucket as every key-value client knows it, with one value a key; what nobody wrote for a year goes."""
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
