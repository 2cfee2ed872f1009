"""Subject transforms: rename a subject that matches one pattern into the words of another.

In the destination `{{wildcard(1)}}` or `$1` stands for what the first `*` of the source matched, `>` for what `>`
matched, and the other functions cut a matched token, hash several of them into a partition, or draw a number.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import NamedTuple

from jetlake.errors import ConfigError
from jetlake.protocol.subjects import CONFIG_TOKENS_MAX, is_valid_config, matches

__all__ = ["Transform", "compile_transform"]

# A piece of the destination: takes the tokens of the subject and gives one or more tokens.
_Piece = Callable[[list[bytes]], bytes]

_FUNCTION = re.compile(r"\{\{\s*([A-Za-z]+)\s*\((.*)\)\s*\}\}", re.DOTALL)
_FNV_OFFSET = 2166136261
_FNV_PRIME = 16777619


class Transform(NamedTuple):
    """A compiled transform."""

    source: bytes
    """The pattern that subjects must match."""
    pieces: tuple[_Piece, ...]
    """What makes the new subject, in order; empty when subjects stay as they are."""

    def apply(self, subject: bytes) -> bytes | None:
        """Return the new subject, or None when the subject does not match."""
        if not matches(self.source, subject):
            return None
        if not self.pieces:
            return subject
        tokens = subject.split(b".")
        return b".".join([piece(tokens) for piece in self.pieces])


def compile_transform(source: str, destination: str, draw: Callable[[int], int] = random.randrange) -> Transform:
    """Prepare the renaming of subjects that match `source` to `destination`.

    An empty source means `>`; an empty destination leaves subjects as they are.

    Args:
        draw: gives a number below its argument, for `{{random(n)}}`.

    Raises:
        ConfigError: a subject that is not valid, a function that is not known or has wrong arguments, or a wildcard
            that the source does not have.
    """
    source = source or ">"
    if not is_valid_config(source.encode()):
        raise ConfigError("invalid subject")
    if not destination:
        return Transform(source.encode(), ())
    source_tokens = source.split(".")
    destination_tokens = _destination_tokens(destination)
    is_open = source_tokens[-1] == ">"
    if "*" in destination_tokens or (destination_tokens[-1] == ">") != is_open:
        raise ConfigError("invalid subject")
    if source == destination == ">":
        return Transform(b">", ())
    wildcards = [index for index, token in enumerate(source_tokens) if token == "*"]
    if not wildcards and not is_open:
        _check_literal(destination_tokens)
    pieces = [_piece(token, wildcards, draw) for token in destination_tokens[: -1 if is_open else None]]
    if is_open:
        fixed = len(source_tokens) - 1
        pieces.append(lambda tokens: b".".join(tokens[fixed:]))
    return Transform(source.encode(), tuple(pieces))


def _destination_tokens(destination: str) -> list[str]:
    """Split at the dots, and check all but the insides of functions, which may hold blanks."""
    tokens = destination.split(".")
    if len(tokens) > CONFIG_TOKENS_MAX:
        raise _bad_destination("too many tokens")
    for index, token in enumerate(tokens):
        is_function = token.startswith("{{") and token.endswith("}}")
        if not token or (token == ">" and index != len(tokens) - 1):
            raise _bad_destination("invalid transform")
        if not is_function and not is_valid_config(token.encode()):
            raise _bad_destination("invalid transform")
    return tokens


def _check_literal(tokens: list[str]) -> None:
    """Refuse functions after a source without wildcards, which leaves them nothing to work on."""
    for token in tokens:
        if token.startswith("{{") or (token.startswith("$") and token[1:].isdigit()):
            raise _bad_destination("wildcard index out of range", token)


def _bad_destination(reason: str, token: str | None = None) -> ConfigError:
    return ConfigError(f"invalid mapping destination: {reason}" + (f" in {token}" if token else ""))


def _piece(token: str, wildcards: list[int], draw: Callable[[int], int]) -> _Piece:
    if token.startswith("$") and token[1:].isascii() and token[1:].isdigit():
        return _pick(_position(token, int(token[1:]), wildcards))
    if len(token) > 4 and token.startswith("{{") and token.endswith("}}"):
        return _function(token, wildcards, draw)
    literal = token.encode()
    return lambda tokens: literal


def _function(token: str, wildcards: list[int], draw: Callable[[int], int]) -> _Piece:
    call = _FUNCTION.fullmatch(token)
    name = call[1].lower() if call else ""
    if call is None or name not in _ARGUMENTS:
        raise _bad_destination("unknown function", token)
    arguments = [argument.strip(" ") for argument in re.split(r",\s*", call[2])]
    fewest, most = _ARGUMENTS[name]
    if len(arguments) < fewest or arguments == [""]:
        raise _bad_destination("not enough arguments passed to the function", token)
    if most is not None and len(arguments) > most:
        raise _bad_destination("too many arguments passed to the function", token)
    if name == "random":
        bound = _number(token, arguments[0], at_least=1)
        return lambda tokens: b"%d" % draw(bound)
    if name == "partition":
        return _partition(token, arguments, wildcards)
    position = _position(token, _number(token, arguments[0]), wildcards)
    if name == "wildcard":
        return _pick(position)
    if name == "split":
        if not arguments[1] or " " in arguments[1]:
            raise _bad_destination("function argument is invalid or in the wrong format", token)
        return _split(position, arguments[1].encode())
    return _CUTTERS[name](position, _number(token, arguments[1]))


# How many arguments each function takes: fewest and most.
_ARGUMENTS: dict[str, tuple[int, int | None]] = {
    "wildcard": (1, 1),
    "partition": (1, None),
    "random": (1, 1),
    "split": (2, 2),
    "splitfromleft": (2, 2),
    "splitfromright": (2, 2),
    "slicefromleft": (2, 2),
    "slicefromright": (2, 2),
    "left": (2, 2),
    "right": (2, 2),
}


def _number(token: str, argument: str, at_least: int = 0) -> int:
    if not (argument.isascii() and argument.isdigit()) or len(argument) > 9 or int(argument) < at_least:
        raise _bad_destination("function argument is invalid or in the wrong format", token)
    return int(argument)


def _position(token: str, number: int, wildcards: list[int]) -> int:
    """Return where in the subject the wildcard of that number is."""
    if not 1 <= number <= len(wildcards):
        raise _bad_destination("wildcard index out of range", f"{token}: [{number}]")
    return wildcards[number - 1]


def _pick(position: int) -> _Piece:
    return lambda tokens: tokens[position]


def _partition(token: str, arguments: list[str], wildcards: list[int]) -> _Piece:
    partitions = _number(token, arguments[0], at_least=1)
    positions = [_position(token, _number(token, argument), wildcards) for argument in arguments[1:]]

    def piece(tokens: list[bytes]) -> bytes:
        key = b"".join([tokens[position] for position in positions]) if positions else b".".join(tokens)
        digest = _FNV_OFFSET
        for byte in key:
            digest = (digest ^ byte) * _FNV_PRIME & 0xFFFFFFFF
        return b"%d" % (digest % partitions)

    return piece


def _split(position: int, delimiter: bytes) -> _Piece:
    def piece(tokens: list[bytes]) -> bytes:
        token = tokens[position]
        return b".".join([part for part in token.split(delimiter) if part]) or token

    return piece


def _split_from_left(position: int, size: int) -> _Piece:
    def piece(tokens: list[bytes]) -> bytes:
        token = tokens[position]
        return token[:size] + b"." + token[size:] if 0 < size < len(token) else token

    return piece


def _split_from_right(position: int, size: int) -> _Piece:
    def piece(tokens: list[bytes]) -> bytes:
        token = tokens[position]
        return token[:-size] + b"." + token[-size:] if 0 < size < len(token) else token

    return piece


def _slice_from_left(position: int, size: int) -> _Piece:
    def piece(tokens: list[bytes]) -> bytes:
        token = tokens[position]
        if not 0 < size < len(token):
            return token
        return b".".join([token[at : at + size] for at in range(0, len(token), size)])

    return piece


def _slice_from_right(position: int, size: int) -> _Piece:
    def piece(tokens: list[bytes]) -> bytes:
        token = tokens[position]
        if not 0 < size < len(token):
            return token
        first = len(token) % size
        parts = [token[at : at + size] for at in range(first, len(token), size)]
        return b".".join([token[:first], *parts] if first else parts)

    return piece


def _left(position: int, size: int) -> _Piece:
    return lambda tokens: tokens[position][:size] if size > 0 else tokens[position]


def _right(position: int, size: int) -> _Piece:
    return lambda tokens: tokens[position][-size:] if size > 0 else tokens[position]


_CUTTERS: dict[str, Callable[[int, int], _Piece]] = {
    "splitfromleft": _split_from_left,
    "splitfromright": _split_from_right,
    "slicefromleft": _slice_from_left,
    "slicefromright": _slice_from_right,
    "left": _left,
    "right": _right,
}
