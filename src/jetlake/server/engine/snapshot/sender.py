"""The sender of an archive: chunks to the client's subject, as many at a time as the window allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jetlake.errors import JetlakeError
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.routing.account import Account, Watch
from jetlake.server.engine.snapshot.transfers import Transfers
from jetlake.store.steps import Steps

__all__ = ["ArchiveSender", "inflight_max"]

_CHUNK_DEFAULT, _CHUNK_MIN, _CHUNK_MAX = 128 * 1024, 1024, 1024 * 1024
_WINDOW_DEFAULT, _WINDOW_MIN, _WINDOW_MAX = 8 * 1024 * 1024, 1024, 32 * 1024 * 1024

# How long a backup waits for its first subscriber, and for an acknowledgement.
_INTEREST_NS = 2_000_000_000
_ACK_NS = 5_000_000_000

_END = b"NATS/1.0 204\r\n\r\n"
_NO_FLOW = b"NATS/1.0 408 No Flow Response\r\n\r\n"
_NO_INTEREST = b"NATS/1.0 408 No Interest\r\n\r\n"


def inflight_max(chunk_size: int, window_size: int) -> tuple[int, int]:
    """Return the size of a chunk, and how many of them may be unacknowledged, for what a client asked."""
    chunk = min(max(chunk_size, _CHUNK_MIN), _CHUNK_MAX) if chunk_size > 0 else _CHUNK_DEFAULT
    window = min(max(window_size, _WINDOW_MIN), _WINDOW_MAX) if window_size > 0 else _WINDOW_DEFAULT
    return chunk, max(window // chunk, 1)


class ArchiveSender:
    """Sends one archive; a transfer from its construction on.

    Args:
        services: the engine's clock, timers and long work.
        account: where the client subscribes.
        transfers: where acknowledgements are received.
        stream: name of the stream.
        subject: where chunks are sent.
        pieces: the archive; the time that a piece takes is short.
        chunk_bytes: size of a chunk.
        inflight_max: most chunks that are sent and not acknowledged.
        on_end: called at the end, with the reason when that came early.
    """

    def __init__(
        self,
        services: Services,
        account: Account,
        transfers: Transfers,
        stream: str,
        subject: bytes,
        pieces: Iterator[bytes],
        *,
        chunk_bytes: int,
        inflight_max: int,
        on_end: Callable[[str], None],
    ) -> None:
        self._services = services
        self._account = account
        self._transfers = transfers
        self._subject = subject
        self._pieces: Iterator[bytes] | None = pieces
        self._chunk_bytes = chunk_bytes
        self._inflight_max = inflight_max
        self._on_end = on_end
        self._id = services.next_nuid().encode()
        self._reply = b"$JS.SNAPSHOT.ACK.%b.%b.%d." % (stream.encode(), self._id, chunk_bytes)
        self._waiting = bytearray()
        self._sent = 0
        self._inflight = 0
        self._is_running = False
        self._is_ended = False
        self._timer: Timer | None = None
        self._watch: Watch | None = None
        transfers.begin(self._id, self)

    def begin(self) -> None:
        """Start to send once the client subscribes, and in any case after two seconds."""
        if self._is_ended:
            return
        if self._account.has_interest(self._subject):
            self._start()
        else:
            self._watch = self._account.watch_interest(self._subject, self._start)
            self._arm(_INTEREST_NS, self._start)

    def _start(self) -> None:
        if self._watch is not None:
            self._account.unwatch(self._watch)
        self._watch = self._account.watch_interest(self._subject, self._on_interest)
        self._disarm()
        self._run()

    def receive(self, reply: bytes, payload: bytes) -> None:
        """Take an acknowledgement, whatever it says, and send more."""
        if self._inflight:
            self._inflight -= 1
            self._disarm()
            self._run()

    def cancel(self) -> None:
        """Send nothing more: the server stops."""
        self._close("the server stopped")

    def _run(self) -> None:
        if not self._is_running and not self._is_ended:
            self._is_running = True
            self._services.long_work.begin(self._send())

    def _send(self) -> Steps[None]:
        """Send until the archive ends or the window is full."""
        try:
            while not self._is_ended:
                if len(self._waiting) >= self._chunk_bytes:
                    if self._inflight >= self._inflight_max:
                        self._arm(_ACK_NS, lambda: self._end(_NO_FLOW, "no flow response"))
                        return
                    self._send_chunk()
                elif self._pieces is None:
                    self._send_rest()
                else:
                    self._take(self._pieces)
                yield
        except JetlakeError as error:
            self._end(b"NATS/1.0 500 %b\r\n\r\n" % str(error).replace("\r\n", " ").encode(), str(error))
        finally:
            self._is_running = False

    def _take(self, pieces: Iterator[bytes]) -> None:
        piece = next(pieces, None)
        if piece is None:
            self._pieces = None
        else:
            self._waiting += piece

    def _send_chunk(self) -> None:
        self._sent += 1
        self._inflight += 1
        chunk = bytes(self._waiting[: self._chunk_bytes])
        del self._waiting[: self._chunk_bytes]
        self._publish(b"%b%d" % (self._reply, self._sent), b"", chunk)

    def _send_rest(self) -> None:
        if self._waiting:
            self._publish(b"", b"", bytes(self._waiting))
        # As in nats-server: the status is left out when everything went out with the rest.
        self._end(_END if self._sent else b"", "")

    def _on_interest(self) -> None:
        if not self._is_running and not self._account.has_interest(self._subject):
            self._end(_NO_INTEREST, "no interest")

    def _end(self, header: bytes, error: str) -> None:
        self._publish(b"", header, b"")
        self._close(error)

    def _publish(self, reply: bytes, header: bytes, payload: bytes) -> None:
        # To subscribers alone: the client must not make requests in the server's name.
        self._account.send_to(self._subject, [(self._subject, reply, header, payload)])

    def _close(self, error: str) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        self._pieces = None
        self._waiting.clear()
        self._disarm()
        if self._watch is not None:
            self._account.unwatch(self._watch)
        self._transfers.end(self._id)
        self._on_end(error)

    def _arm(self, delay_ns: int, callback: Callable[[], None]) -> None:
        self._disarm()
        deadline_ns = self._services.clock.now_ns() + delay_ns
        self._timer = self._services.timers.schedule(deadline_ns, lambda _now_ns: callback())

    def _disarm(self) -> None:
        self._services.timers.cancel(self._timer)
