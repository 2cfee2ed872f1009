"""A secret of the configuration: a password, a token or a seed."""

from __future__ import annotations

__all__ = ["Secret"]


class Secret:
    """A password or token: it never shows itself in a log, a report or a traceback."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret itself, for comparison."""
        return self._value

    def is_bcrypt(self) -> bool:
        """Return whether the value is a bcrypt hash of the secret."""
        return self._value.startswith(("$2a$", "$2b$", "$2x$", "$2y$"))

    def __repr__(self) -> str:
        return "Secret('***')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)
