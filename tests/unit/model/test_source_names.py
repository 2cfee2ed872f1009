"""The names of copying, as nats-server makes them."""

import pytest

from jetlake.model.encoding.times import parse_time
from jetlake.model.source_names import (
    SourceHeader,
    consumer_name,
    index_name,
    parse_source_header,
    short_hash,
    stream_identity,
)
from jetlake.model.stream import ExternalStream, SourceConsumer, StreamSource, SubjectTransform


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (StreamSource(name="O"), "O > >"),
        (StreamSource(name="O", filter_subject=">"), "O > >"),
        (StreamSource(name="O", filter_subject="o.1"), "O o.1 >"),
        (
            StreamSource(name="SN", subject_transforms=(SubjectTransform(src="sn.*", dest="moved.{{wildcard(1)}}"),)),
            "SN sn.* moved.{{wildcard(1)}}",
        ),
        (
            StreamSource(name="O", subject_transforms=(SubjectTransform(src="a"), SubjectTransform(src="b", dest="c"))),
            "O a\fb >\fc",
        ),
        (StreamSource(name="O", external=ExternalStream(api="$JS.hub.API")), f"O:{short_hash('$JS.hub.API')} > >"),
        (StreamSource(name="O", consumer=SourceConsumer(name="pre")), f"O:C={short_hash('pre')} > >"),
    ],
)
def test_index_names(source: StreamSource, name: str) -> None:
    assert index_name(source) == name


def test_consumers_of_two_sources_of_one_stream_differ() -> None:
    names = {consumer_name("S", "$G", "", index) for index in (None, "", "O a >", "O b >")}
    assert len(names) == 4
    assert consumer_name("S", "$G", "") != consumer_name("S", "$G", "hub")


@pytest.mark.parametrize(
    ("value", "header"),
    [
        (b"SN 2 sn.* moved.$1 sn.a BuLbX1xw", SourceHeader("SN sn.* moved.$1", 2, "BuLbX1xw")),
        (b"O:bTMUkJQk 1 > > o.a 1CTRa0xt", SourceHeader("O:bTMUkJQk > >", 1, "1CTRa0xt")),
        (b"O 7 > >", SourceHeader("O > >", 7, "")),
        (b"O 7", SourceHeader("O", 7, "")),
        (b"O", None),
        (b"O x > >", None),
        (b"", None),
    ],
)
def test_headers(value: bytes, header: SourceHeader | None) -> None:
    assert parse_source_header(value) == header


def test_an_identity_is_that_of_one_creation() -> None:
    first, second = (stream_identity(parse_time(f"2026-11-15T00:00:00.00000000{last}Z")) for last in (1, 2))
    assert first != second and len(first) == 8
