"""Subject mappings between accounts: the exporter's subject and the name under which another account imports it.

Unlike a transform, a mapping works in both directions, and on patterns too: a subscription in the importing account
becomes the narrowest subscription in the exporting one.
"""

from __future__ import annotations

import re

from jetlake.errors import ConfigError
from jetlake.protocol.subjects import is_valid_subscribe

__all__ = ["SubjectMapping"]

_REFERENCE = re.compile(r"\$(\d+)|\{\{\s*[Ww]ildcard\s*\(\s*(\d+)\s*\)\s*\}\}")


class SubjectMapping:
    """An exported subject, and the subject that stands for it in the importing account.

    Args:
        remote: the exporter's subject; may hold wildcards.
        local: the importer's subject: `$1` or `{{wildcard(1)}}` is what the first `*` of the remote subject matches, a
            bare `*` is the next one in order; empty = the same as the remote subject.

    Attributes:
        local: the importer's subject as a pattern.

    Raises:
        ConfigError: a subject is not valid, or the local subject does not use every wildcard of the remote one once.
    """

    def __init__(self, remote: str, local: str = "") -> None:
        self.remote = remote.encode()
        self._remote_tokens = self.remote.split(b".")
        stars = [place for place, token in enumerate(self._remote_tokens) if token == b"*"]
        tokens = (local or remote).split(".")
        # For each local token: the place of the remote wildcard that it stands for, or None for a literal.
        self._places = _places(tokens, stars)
        self._local_tokens = [
            token.encode() if place is None else b"*" for token, place in zip(tokens, self._places, strict=True)
        ]
        self.local = b".".join(self._local_tokens)
        if not (is_valid_subscribe(self.remote) and is_valid_subscribe(self.local)):
            raise ConfigError("invalid subject")
        self._is_open = self._remote_tokens[-1] == b">"
        if self._is_open != (self._local_tokens[-1] == b">"):
            raise ConfigError(f'"{remote}" and "{local}" must both end in ">" or neither of them')
        self._is_same = self.local == self.remote and sorted(stars) == [p for p in self._places if p is not None]

    def to_local(self, subject: bytes) -> bytes:
        """Return the importer's name of a literal subject that matches the exported one."""
        if self._is_same:
            return subject
        tokens = subject.split(b".")
        mapped = [
            token if place is None else tokens[place]
            for token, place in zip(self._local_tokens, self._places, strict=True)
        ]
        if self._is_open:
            mapped[-1:] = tokens[len(self._remote_tokens) - 1 :]
        return b".".join(mapped)

    def to_remote(self, pattern: bytes) -> bytes | None:
        """Return what the importer's subject or pattern means at the exporter; None when nothing of it is imported."""
        remote = self._remote_tokens.copy()
        tokens = pattern.split(b".")
        count = len(self._local_tokens) - self._is_open
        for index in range(count):
            if index >= len(tokens):
                return None
            token = tokens[index]
            if token == b">":
                return b".".join(remote)  # the rest of the pattern takes all that is imported
            place = self._places[index]
            if place is not None:
                remote[place] = token
            elif token not in (self._local_tokens[index], b"*"):
                return None
        rest = tokens[count:]
        if bool(rest) != self._is_open:
            return None
        if self._is_open:
            remote[-1:] = rest
        return b".".join(remote)


def _places(tokens: list[str], stars: list[int]) -> list[int | None]:
    places: list[int | None] = []
    used: list[int] = []
    for token in tokens:
        found = _REFERENCE.fullmatch(token)
        if token != "*" and found is None:
            if token.startswith("{{"):
                raise ConfigError(f"invalid mapping destination: an import can only use wildcards, not {token}")
            places.append(None)
            continue
        number = len(used) + 1 if found is None else int(found[1] or found[2])
        if not 1 <= number <= len(stars):
            raise ConfigError(f"invalid mapping destination: wildcard index out of range in {token}")
        used.append(number)
        places.append(stars[number - 1])
    if sorted(used) != list(range(1, len(stars) + 1)):
        raise ConfigError("invalid mapping destination: not using all of the token wildcard(s)")
    return places
