"""What is in a server: every message, and where every consumer stands."""

from hashlib import sha256

__all__ = ["describe"]


async def describe(js):
    """Return the content of all streams, as JSON."""
    streams = {}
    for name in sorted(await js.stream_names()):
        stream = await js.stream(name)
        info = await stream.info(deleted_details=True)
        state = info.state
        digest = sha256()
        for sequence in range(max(state.first_seq, 1), state.last_seq + 1):
            if sequence not in (state.deleted or ()):
                stored = await stream.get(sequence)
                headers = sorted(dict(stored.headers or {}).items())
                digest.update(repr((sequence, stored.subject, headers, bytes(stored.payload), stored.time)).encode())
        consumers = {
            each.name: [each.ack_floor.stream_seq, each.delivered.stream_seq, each.num_ack_pending, each.num_pending]
            for each in await stream.consumers()
        }
        streams[name] = {
            "created": info.created,
            "state": [state.messages, state.bytes, state.first_seq, state.last_seq, list(state.deleted or ())],
            "messages": digest.hexdigest(),
            "consumers": consumers,
        }
    return {"streams": streams}
