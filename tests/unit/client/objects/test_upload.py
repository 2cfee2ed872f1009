"""Contents of any kind are cut into the same chunks."""

import io

from hypothesis import given
from hypothesis import strategies as st

from jetlake.client.objects.upload import cut


async def chunks(content, size):
    return [chunk async for chunk in cut(content, size)]


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 30))
async def test_pieces_of_any_size(pieces, size):
    whole = b"".join(pieces)
    expected = [whole[start : start + size] for start in range(0, len(whole), size)]

    async def one_by_one():
        for piece in pieces:
            yield piece

    for content in (whole, memoryview(whole), io.BytesIO(whole), iter(pieces), one_by_one()):
        assert await chunks(content, size) == expected


async def test_files_with_coroutines():
    class File:
        def __init__(self):
            self.rest = [b"abc", b"de", b""]

        async def read(self, size):
            return self.rest.pop(0)

    assert await chunks(File(), 2) == [b"ab", b"cd", b"e"]
