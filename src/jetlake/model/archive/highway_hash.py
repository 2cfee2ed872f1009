"""HighwayHash-64, with which nats-server seals the records and files of archives up to its version 2.14."""

from __future__ import annotations

import struct

__all__ = ["highway_hash"]

_MASK = 0xFFFFFFFFFFFFFFFF
_INIT_0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_INIT_1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
_PACKET_BYTES = 32
_LANES = struct.Struct("<4Q")
_FINAL_ROUNDS = 4
# Bytes of two lanes in the order in which they are added to the other two.
_ZIPPER_LOW = ((3, 0), (12, 1), (2, 2), (5, 3), (14, 4), (1, 5), (15, 6), (0, 7))
_ZIPPER_HIGH = ((11, 0), (4, 1), (10, 2), (13, 3), (9, 4), (6, 5), (8, 6), (7, 7))


def highway_hash(key: bytes, data: bytes) -> bytes:
    """Return the 8 bytes of the hash under a key of 32 bytes."""
    lanes = _LANES.unpack(key)
    state = _State(lanes)
    whole = len(data) - len(data) % _PACKET_BYTES
    for start in range(0, whole, _PACKET_BYTES):
        state.update(_LANES.unpack_from(data, start))
    if whole < len(data):
        state.update_remainder(data[whole:])
    return state.finish()


class _State:
    """The four groups of four lanes that packets are mixed into."""

    __slots__ = ("mul0", "mul1", "v0", "v1")

    def __init__(self, key: tuple[int, ...]) -> None:
        self.mul0 = list(_INIT_0)
        self.mul1 = list(_INIT_1)
        self.v0 = [init ^ lane for init, lane in zip(_INIT_0, key, strict=True)]
        self.v1 = [init ^ (lane >> 32 | lane << 32 & _MASK) for init, lane in zip(_INIT_1, key, strict=True)]

    def update(self, packet: tuple[int, ...]) -> None:
        """Mix a packet of four lanes in."""
        v0, v1, mul0, mul1 = self.v0, self.v1, self.mul0, self.mul1
        for i in range(4):
            v1[i] = (v1[i] + mul0[i] + packet[i]) & _MASK
            mul0[i] ^= (v1[i] & 0xFFFFFFFF) * (v0[i] >> 32)
            v0[i] = (v0[i] + mul1[i]) & _MASK
            mul1[i] ^= (v0[i] & 0xFFFFFFFF) * (v1[i] >> 32)
        _zipper_add(v1, v0)
        _zipper_add(v0, v1)

    def update_remainder(self, rest: bytes) -> None:
        """Mix the last bytes in, fewer than a packet has."""
        count = len(rest)
        self.v0 = [(lane + (count << 32) + count) & _MASK for lane in self.v0]
        self.v1 = [_rotate_halves(lane, count) for lane in self.v1]
        packet = bytearray(_PACKET_BYTES)
        whole, tail = rest[: count & ~3], rest[count & ~3 :]
        packet[: len(whole)] = whole
        if count & 16:
            packet[28:32] = rest[count - 4 :]
        elif tail:
            packet[16] = tail[0]
            packet[17] = tail[len(tail) >> 1]
            packet[18] = tail[-1]
        self.update(_LANES.unpack(packet))

    def finish(self) -> bytes:
        for _ in range(_FINAL_ROUNDS):
            v0 = self.v0
            self.update(tuple(lane >> 32 | lane << 32 & _MASK for lane in (v0[2], v0[3], v0[0], v0[1])))
        total = self.v0[0] + self.v1[0] + self.mul0[0] + self.mul1[0]
        return (total & _MASK).to_bytes(8, "little")


def _zipper_add(source: list[int], target: list[int]) -> None:
    for low in (0, 2):
        both = (source[low] | source[low + 1] << 64).to_bytes(16, "little")
        target[low] = (target[low] + sum(both[byte] << 8 * place for byte, place in _ZIPPER_LOW)) & _MASK
        target[low + 1] = (target[low + 1] + sum(both[byte] << 8 * place for byte, place in _ZIPPER_HIGH)) & _MASK


def _rotate_halves(lane: int, count: int) -> int:
    """Return a lane with both of its 32-bit halves rotated left."""
    halves = 0
    for shift in (0, 32):
        half = lane >> shift & 0xFFFFFFFF
        halves |= ((half << count | half >> 32 - count) & 0xFFFFFFFF) << shift
    return halves
