"""Bytes that reach a parser in several reads, and the frames that it makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from jetlake.protocol.frames import AckRun, Frame, PubRun
from jetlake.protocol.parser import GeneralParser


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """Cut the data at these places; those behind its end cut nothing."""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def feed_in_groups(parser: GeneralParser, parts: list[bytes], lines: int) -> list[Frame]:
    """Feed the parts to a parser, so many lines at a time, as a connection does."""
    frames: list[Frame] = []
    for part in parts:
        position = 0
        while True:
            frames += parser.feed(part, position, lines)
            position = parser.position
            if position == len(part):
                break
    return frames


def one_by_one(frames: list[Frame]) -> list[Frame]:
    """Take runs of acknowledgements and of publishes apart."""
    return [one for frame in frames for one in (frame.messages() if isinstance(frame, AckRun | PubRun) else [frame])]
