"""The image of a stream: its state, consumers and messages up to one sequence, as the pieces of an archive."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from jetlake.errors import StoreError
from jetlake.model.archive.items import ConsumerEntry
from jetlake.model.archive.writer import ArchiveWriter
from jetlake.model.stream import StreamState
from jetlake.server.engine.consumer.consumer import Consumer
from jetlake.server.engine.snapshot.consumer_positions import archived_position
from jetlake.server.engine.stream.stream import Stream

__all__ = ["archive_pieces"]

_READ_MESSAGES = 256
_READ_BYTES = 128 * 1024


def archive_pieces(stream: Stream[Consumer], state: StreamState, *, consumers: bool, now_ns: int) -> Iterator[bytes]:
    """Yield the archive of a stream in small pieces, some of them empty; other work may go on in between.

    Messages that are removed meanwhile may be left out, newer ones are never included. Consumers come first: one that
    acknowledges a message meanwhile gets the message again after a restore, rather than never.

    Args:
        stream: the stream.
        state: its state, as the client was told.
        consumers: whether the consumers are included.
        now_ns: the time of the backup.

    Raises:
        StoreError: the disk does not give the messages back, or the stream was deleted.
    """
    writer = ArchiveWriter()
    included = [consumer for consumer in stream.consumers.values() if not consumer.config.direct] if consumers else []
    writer.add_state(replace(state, consumer_count=len(included), lost=None), now_ns)
    for consumer in included:
        position = archived_position(consumer.ack_tracker.state(), state.last_seq)
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
