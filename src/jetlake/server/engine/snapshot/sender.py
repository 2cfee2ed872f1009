"""The sender of an archive: a stream's state, consumers and messages, in chunks to the client's subject.

Other work continues between two steps. At most a window of chunks is unacknowledged; a client that is silent for some
seconds, or unsubscribes, ends the transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from jetlake.errors import JetlakeError, StoreError
from jetlake.model.archive.archive import ArchiveWriter
from jetlake.model.archive.items import ConsumerEntry, ConsumerPosition, PendingMessage, SequencePair
from jetlake.model.stream import StreamState
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.routing.account import Watch
from jetlake.server.engine.snapshot.transfers import Transfers
from jetlake.server.engine.stream.stream import Stream
from jetlake.store.journal.consumer_state import ConsumerState
from jetlake.store.steps import Steps

_CHUNK_DEFAULT, _CHUNK_MIN, _CHUNK_MAX = 128 * 1024, 1024, 1024 * 1024
_WINDOW_DEFAULT, _WINDOW_MIN, _WINDOW_MAX = 8 * 1024 * 1024, 1024, 32 * 1024 * 1024

# The archive is read in runs of this size.
_READ_MESSAGES = 256
_READ_BYTES = 128 * 1024

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
        stream: the stream.
        transfers: where acknowledgements are received.
        subject: where chunks are sent.
        pieces: the archive (`archive_pieces`).
        window: bytes of a chunk, and most chunks that are sent and not acknowledged.
        on_end: called at the end, with the reason when that came early.
    """

    def __init__(
        self,
        stream: Stream,
        transfers: Transfers,
        subject: bytes,
        pieces: Iterator[bytes],
        *,
        window: tuple[int, int],
        on_end: Callable[[str], None],
    ) -> None:
        self._services = stream.services
        self._account = stream.account
        self._transfers = transfers
        self._subject = subject
        self._pieces: Iterator[bytes] | None = pieces
        self._chunk_bytes, self._inflight_max = window
        self._on_end = on_end
        self._id = stream.services.next_nuid().encode()
        self._reply = b"$JS.SNAPSHOT.ACK.%b.%b.%d." % (stream.name.encode(), self._id, self._chunk_bytes)
        self._waiting = bytearray()
        self._sent = 0
        self._inflight = 0
        self._is_subscribed = False
        self._is_started = False
        self._is_running = False
        self._is_ended = False
        self._timer: Timer | None = None
        self._watch: Watch | None = None
        transfers.begin(self._id, self)

    def begin(self) -> None:
        """Start to send once the client subscribes to the very subject, and in any case after two seconds."""
        if self._is_ended:
            return
        self._watch = self._account.watch_interest(self._subject, self._on_interest)
        self._arm(_INTEREST_NS, self._start)
        self._on_interest()

    def _start(self) -> None:
        self._is_started = True
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
        was_subscribed = self._is_subscribed
        self._is_subscribed = self._account.has_literal_interest(self._subject)
        if self._is_subscribed and not self._is_started:
            self._start()
        elif was_subscribed and not self._is_subscribed and not self._is_running:
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
            self._watch = None
        self._transfers.end(self._id)
        self._on_end(error)

    def _arm(self, delay_ns: int, callback: Callable[[], None]) -> None:
        self._disarm()
        deadline_ns = self._services.clock.now_ns() + delay_ns
        self._timer = self._services.timers.schedule(deadline_ns, lambda _now_ns: callback())

    def _disarm(self) -> None:
        self._services.timers.cancel(self._timer)


def archive_pieces(stream: Stream, state: StreamState, *, consumers: bool, now_ns: int) -> Iterator[bytes]:
    """Yield the archive of a stream in small parts, some of them empty; the stream may change between two of them.

    Messages that are removed meanwhile may be left out, newer ones are never included. Consumers come first: one that
    acknowledges a message meanwhile gets the message again after a restore, rather than never.

    Args:
        stream: the stream.
        state: its state, as the answer to the client has it.
        consumers: whether the consumers are included.
        now_ns: the time of the backup.

    Raises:
        StoreError: the messages cannot be read, or the stream was deleted.
    """
    writer = ArchiveWriter()
    included = [consumer for consumer in stream.consumers.values() if not consumer.config.direct] if consumers else []
    writer.add_state(replace(state, consumer_count=len(included), lost=None), now_ns)
    for consumer in included:
        position = _archived_position(consumer.ack_tracker.state(), state.last_seq)
        config = replace(consumer.config, name=consumer.name)
        writer.add_consumer(consumer.name, ConsumerEntry(config=config, state=position), now_ns)
        yield b""
    next_sequence = max(state.first_seq, 1)
    while next_sequence <= state.last_seq:
        if stream.is_closed:
            raise StoreError("read the messages", "the stream was deleted")
        run = stream.store.read(next_sequence, None, _READ_MESSAGES, _READ_BYTES, state.last_seq)
        if not run.messages:
            break
        writer.add_messages(
            (message.subject, message.time_ns, message.sequence, message.header, message.payload)
            for message in run.messages
        )
        next_sequence = run.next_sequence
        yield b"".join(writer.take())
    yield from writer.finish()


def _archived_position(state: ConsumerState, last_sequence: int) -> ConsumerPosition:
    """Return a consumer's position as an archive holds it.

    Args:
        state: the consumer's position in its journal.
        last_sequence: the last sequence in the archive; newer messages are left out.
    """
    redelivered = {
        sequence: max(count - 1, 1)
        for sequence, count in state.deliveries.items()
        if sequence <= last_sequence and (count > 1 or sequence not in state.pending)
    }
    return ConsumerPosition(
        delivered=SequencePair(
            consumer_seq=state.delivered_consumer, stream_seq=min(state.delivered_stream, last_sequence)
        ),
        ack_floor=SequencePair(consumer_seq=state.floor_consumer, stream_seq=min(state.floor_stream, last_sequence)),
        pending={
            sequence: PendingMessage(sequence=consumer, timestamp=time_ns)
            for sequence, (consumer, time_ns, _) in state.pending.items()
            if sequence <= last_sequence
        },
        redelivered=redelivered,
    )
