"""Subjects: which are valid where, which match, and how two patterns relate.

A subject is a dot-separated list of tokens, as bytes. In a pattern the token `*` stands for any one token, and `>` as
the last token for one or more. `foo*` and `a>` are ordinary tokens: only a whole token is a wildcard.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = [
    "CONFIG_TOKENS_MAX",
    "compile_matcher",
    "compile_search",
    "has_wildcards",
    "is_subset",
    "is_valid_config",
    "is_valid_publish",
    "is_valid_subscribe",
    "matches",
    "overlaps",
    "tokens",
]

_ANY = b"*"
_REST = b">"

_BLANKS = b" \t\r\n\f"

CONFIG_TOKENS_MAX = 256
"""Tokens of a subject in a configuration. Each is a node of several trees, and steps count subjects, not tokens."""


def tokens(subject: bytes) -> list[bytes]:
    """Return the subject's tokens, in order."""
    return subject.split(b".")


def has_wildcards(subject: bytes) -> bool:
    """Return whether the subject stands for more than itself: a token `*`, or a last token `>`."""
    if b"*" not in subject and b">" not in subject:
        return False
    parts = subject.split(b".")
    return parts[-1] == _REST or _ANY in parts


def is_valid_publish(subject: bytes) -> bool:
    """Return whether one can publish to it: no token is empty, holds a blank, or is a wildcard."""
    parts = subject.split(b".")
    return b"" not in parts and _ANY not in parts and _REST not in parts and subject.translate(None, _BLANKS) == subject


def is_valid_subscribe(subject: bytes) -> bool:
    """Return whether SUB takes it: no token is empty or holds a blank, and `>` is only the last one."""
    parts = subject.split(b".")
    return b"" not in parts and _REST not in parts[:-1] and subject.translate(None, _BLANKS) == subject


def is_valid_config(subject: bytes) -> bool:
    """Return whether a configuration takes it: as SUB does, in UTF-8 without NUL, and not of very many tokens."""
    if subject.count(b".") >= CONFIG_TOKENS_MAX or not is_valid_subscribe(subject) or b"\0" in subject:
        return False
    if subject.isascii():
        return True
    try:
        return "\N{REPLACEMENT CHARACTER}" not in subject.decode()
    except UnicodeDecodeError:
        return False


def matches(pattern: bytes, literal: bytes) -> bool:
    """Return whether the pattern covers the subject. The subject's own `*` and `>` are ordinary tokens here."""
    if pattern == literal:
        return True
    if b"*" not in pattern and b">" not in pattern:
        return False
    wanted = pattern.split(b".")
    given = literal.split(b".")
    if wanted[-1] == _REST:
        if len(given) < len(wanted):
            return False
        wanted.pop()
    elif len(given) != len(wanted):
        return False
    return _covers(wanted, given)


def is_subset(a: bytes, b: bytes) -> bool:
    """Return whether every subject that `a` covers is covered by `b` too."""
    if a == b or b == _REST:
        return True
    inner = a.split(b".")
    outer = b.split(b".")
    if outer[-1] == _REST:
        if len(inner) < len(outer):
            return False
        outer.pop()
    elif len(inner) != len(outer) or inner[-1] == _REST:
        return False
    # What `outer` spells out is no longer than `inner` without its `>`, so that `>` is never compared with a token.
    return _covers(outer, inner)


def _covers(wanted: list[bytes], given: list[bytes]) -> bool:
    """Return whether each wanted token equals the given one in its place, or is `*`."""
    for want, have in zip(wanted, given, strict=False):  # noqa: SIM110 - the loop is twice as fast as all()
        if want != have and want != _ANY:
            return False
    return True


def overlaps(a: bytes, b: bytes) -> bool:
    """Return whether some subject is covered by both patterns."""
    if a == b:
        return True
    left = a.split(b".")
    right = b.split(b".")
    left_is_open = left[-1] == _REST
    right_is_open = right[-1] == _REST
    # An open pattern covers everything that is longer than what it spells out, a closed one only its own length.
    if left_is_open and right_is_open:
        left.pop()
        right.pop()
    elif left_is_open:
        if len(left) > len(right):
            return False
        left.pop()
    elif right_is_open:
        if len(right) > len(left):
            return False
        right.pop()
    elif len(left) != len(right):
        return False
    return all(x in (y, _ANY) or y == _ANY for x, y in zip(left, right, strict=False))


def compile_matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Return a function that tells whether the pattern covers a subject: `matches` with its work done beforehand."""
    if not has_wildcards(pattern):
        return pattern.__eq__
    if pattern == _REST:
        return _match_all
    prefix = pattern[:-1]
    if pattern.endswith(b".>") and not has_wildcards(prefix[:-1]):
        return lambda literal: literal.startswith(prefix)
    search = compile_search(pattern)
    return lambda literal: search(literal) is not None


def compile_search(pattern: bytes) -> Callable[[bytes], re.Match[bytes] | None]:
    """Return the same for a pattern with wildcards other than `>` alone, as a match or None: quicker for very many."""
    parts = pattern.split(b".")
    is_open = parts[-1] == _REST
    if is_open:
        parts[-1] = b""
    expression = rb"\.".join(rb"[^.]*" if part == _ANY else re.escape(part) for part in parts)
    return re.compile(expression).match if is_open else re.compile(expression).fullmatch


def _match_all(literal: bytes) -> bool:
    return True
