"""The receiver of an archive: chunks from the client are loaded in steps, and become a stream or leave nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from jetlake.errors import ApiError, DecodeError, JetlakeError, StoreError, api_error
from jetlake.model.archive.archive import ArchiveReader
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.snapshot.loader import LoadedConsumer, StreamLoader
from jetlake.server.engine.snapshot.transfers import Transfers
from jetlake.store.steps import Steps

_CHUNK_NS = 5_000_000_000
# Most bytes of chunks that wait to be loaded: a client should wait for acknowledgements.
_WAITING_BYTES_MAX = 64 * 1024 * 1024
_ITEMS_PER_STEP = 32

Answer = Callable[[bytes, ApiError | None], None]


class ArchiveReceiver:
    """Receives the archive of one stream.

    Args:
        services: the engine's clock, timers, commit and long work.
        account: carries the acknowledgements of chunks.
        transfers: where chunks are received.
        loader: stores the items of the archive.
        adopt: adds the loaded stream to its account; raises `ApiError` or `StoreError` when it cannot be added.
        answer: called once at the end with the reply subject of the last chunk, and the error if there is one.
        on_end: called when the transfer has succeeded or failed, with the number of received bytes.

    Attributes:
        transfer_id: the id in the subject of chunks.
    """

    def __init__(
        self,
        services: Services,
        account: Account,
        transfers: Transfers,
        loader: StreamLoader,
        *,
        adopt: Callable[[StreamLoader, list[LoadedConsumer]], None],
        answer: Answer,
        on_end: Callable[[int], None],
    ) -> None:
        self._services = services
        self._account = account
        self._transfers = transfers
        self.transfer_id = services.next_nuid().encode()
        self._loader = loader
        self._reader = ArchiveReader(loader.config.name, services.options.max_payload)
        self._adopt = adopt
        self._answer = answer
        self._on_end = on_end
        self._chunks: deque[tuple[bytes, bytes]] = deque()
        self._waiting_bytes = 0
        self._received_bytes = 0
        self._is_running = False
        self._is_finishing = False
        self._is_ended = False
        self._failure: ApiError | None = None
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Wait for the first chunk."""
        self._transfers.begin(self.transfer_id, self)
        self._arm()

    def receive(self, reply: bytes, payload: bytes) -> None:
        """Queue a chunk; one without a reply ends the transfer, an empty one completes the archive."""
        if self._is_finishing:
            return
        self._arm()
        self._received_bytes += len(payload)
        self._waiting_bytes += len(payload)
        if not reply or self._waiting_bytes > _WAITING_BYTES_MAX:
            self.cancel()
            return
        self._chunks.append((reply, payload))
        if not self._is_running:
            self._is_running = True
            self._services.long_work.begin(self._load_chunks())

    def cancel(self) -> None:
        """End the transfer without an answer, and leave nothing behind."""
        if not self._is_ended:
            self._fail(api_error(10062, err="cancelled"))
            self._end()

    def _load_chunks(self) -> Steps[None]:
        try:
            while self._chunks and not self._is_ended:
                reply, payload = self._chunks.popleft()
                self._waiting_bytes -= len(payload)
                if payload:
                    yield from self._guarded(self._load(payload))
                    # To subscribers alone: the client must not make requests in the server's name.
                    self._account.send_to(reply, [(reply, b"", b"", b"")])
                else:
                    self._is_finishing = True
                    self._disarm()
                    yield from self._guarded(self._finish(reply))
                    if self._failure is not None:
                        self._refuse(reply)
        finally:
            self._is_running = False

    def _guarded(self, work: Steps[None]) -> Steps[None]:
        """Run steps; the answer at the end has the error that they raise."""
        if self._failure is not None or self._is_ended:
            return
        try:
            yield from work
        except (DecodeError, StoreError) as error:
            self._fail(api_error(10062, err=str(error)))
        except ApiError as error:
            self._fail(api_error(10062, err=f"{error.description} ({error.err_code})"))

    def _load(self, chunk: bytes) -> Steps[None]:
        for count, item in enumerate(self._reader.feed(chunk), 1):
            self._loader.add(item)
            if not count % _ITEMS_PER_STEP:
                yield
            if self._is_ended:
                return

    def _finish(self, reply: bytes) -> Steps[None]:
        for count, item in enumerate(self._reader.finish(), 1):
            self._loader.add(item)
            if not count % _ITEMS_PER_STEP:
                yield
        consumers, syncables = self._loader.complete()
        commit = self._services.commit

        def show(error: JetlakeError | None) -> None:
            if self._is_ended:
                return
            if error is not None:
                self._fail(api_error(10062, err=str(error)))
            else:
                try:
                    self._adopt(self._loader, consumers)
                except ApiError as refusal:
                    self._fail(api_error(10062, err=f"error adding stream: {refusal.description} ({refusal.err_code})"))
                except StoreError as refusal:
                    self._fail(api_error(10062, err=str(refusal)))
            if self._failure is not None:
                self._refuse(reply)
                return
            self._report_missing()
            self._end()
            self._answer(reply, None)

        for syncable in syncables:
            commit.mark_now(syncable)
        if syncables:
            commit.when_all_durable(syncables, show)
        else:
            show(None)

    def _report_missing(self) -> None:
        """Log messages that the archive should hold and does not: no restore may lose them in silence."""
        loader = self._loader
        if loader.missing > 0:
            self._services.report(
                f"JetStream - restored stream {loader.config.name} without {loader.missing} messages that its backup "
                "counts and does not hold: they were removed while it was taken, or removed from it since"
            )

    def _fail(self, error: ApiError) -> None:
        """Remove what the archive has loaded; the client gets the error at the end of its archive."""
        if self._failure is None:
            self._failure = error
            store = self._loader.storage.store
            with self._services.report_store_errors("removing what a restore has left"):
                self._loader.discard()
            self._services.commit.forget(store)

    def _refuse(self, reply: bytes) -> None:
        self._end()
        self._answer(reply, self._failure)

    def _end(self) -> None:
        self._is_ended = True
        self._chunks.clear()
        self._disarm()
        self._transfers.end(self.transfer_id)
        self._on_end(self._received_bytes)

    def _arm(self) -> None:
        self._disarm()
        deadline_ns = self._services.clock.now_ns() + _CHUNK_NS
        self._timer = self._services.timers.schedule(deadline_ns, self._on_silence)

    def _on_silence(self, _now_ns: int) -> None:
        if self._is_running:
            self._arm()  # The client waits for the server.
        else:
            self.cancel()

    def _disarm(self) -> None:
        self._services.timers.cancel(self._timer)
