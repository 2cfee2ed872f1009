"""The headers of a dead letter within the room that its message leaves."""

from jetlake.model.dead_letter import error_headers
from jetlake.protocol.headers import Headers, encode_headers

TRACEBACK = "Traceback (most recent call last):\n" + "".join(f"  line {number}\n" for number in range(50))
BLOCK = len(encode_headers({"A": ""})) - len("A: \r\n")
"""Bytes of a header block without headers."""


def test_the_error_fits_into_every_room():
    description = "ValueError: größer \r\n als erlaubt"
    whole = error_headers(description, TRACEBACK, 100_000)
    assert whole["Dead-Letter-Description"] == "ValueError: größer als erlaubt"
    assert len(whole["Dead-Letter-Traceback"]) == 51
    size = len(encode_headers(whole)) - BLOCK
    assert error_headers(description, TRACEBACK, size) == whole
    for room in range(-1, size):
        said = error_headers(description, TRACEBACK, room)
        assert len(encode_headers(said)) - BLOCK <= room if said else room < 40
        told = said.get("Dead-Letter-Description", "")
        assert whole["Dead-Letter-Description"].startswith(told)
        lines = said.get("Dead-Letter-Traceback", [])
        assert lines == (whole["Dead-Letter-Traceback"][-len(lines) :] if lines else [])
        assert not lines or told == whole["Dead-Letter-Description"]


def test_a_cut_leaves_headers_that_can_be_read():
    said = error_headers("ü" * 600, "", 300)
    assert Headers(encode_headers(said))["Dead-Letter-Description"] == "ü" * 136
