"""A page of large messages keeps only what it shows of each."""

from __future__ import annotations

import json

from jetlake.client.streams.stored_message import StoredMessage
from jetlake.dashboard.messages import MESSAGES_MAX, PREVIEW_BYTES, MessagePages, shown_message
from jetlake.errors import MessageNotFoundError

HEADER = b"NATS/1.0\r\n" + b"".join(b"H%d: %s\r\n" % (number, b"v" * 1000) for number in range(300)) + b"\r\n"


class LargeMessages:
    """A stream of messages of a megabyte, with headers of a third of one."""

    async def get(self, sequence, *, next_by_subject, direct):
        if sequence > MESSAGES_MAX:
            raise MessageNotFoundError(404, 10037, "no message found")
        return StoredMessage("s", sequence, "2026-11-15T00:00:00Z", HEADER, bytes(1 << 20))


async def test_a_page_of_large_messages_keeps_only_what_it_shows():
    found = await MessagePages(LargeMessages()).before(MESSAGES_MAX + 1, MESSAGES_MAX, 1)
    assert len(found) == MESSAGES_MAX
    assert max(len(message.payload) + len(message.header) for message in found) <= 2 * PREVIEW_BYTES + 4
    shown = shown_message(found[0])
    assert (shown["size"], shown["cut"]) == (1 << 20, True)
    assert shown["headers"][0] == ("H0", "v" * 1000)
    assert 60 < len(shown["headers"]) < 70
    left_out = len(HEADER) - len(found[0].header)
    assert shown["headers"][-1] == ("…", f"{left_out:,} more bytes")
    assert len(json.dumps(shown)) < 4 * PREVIEW_BYTES


def test_a_small_message_is_shown_whole():
    small = StoredMessage("s", 7, "2026-11-15T00:00:00Z", b"NATS/1.0\r\nA: b\r\n\r\n", b"xyz")
    shown = shown_message(small)
    assert (shown["size"], shown["cut"], shown["headers"], shown["data"]) == (3, False, [("A", "b")], "eHl6")
