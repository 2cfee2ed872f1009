"""The query of a monitoring request, read with the types that its keys have."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote

__all__ = ["BadQueryError", "Query"]


class BadQueryError(ValueError):
    """A key of the query has a value that it cannot have; the request is answered with 400."""


class Query:
    """Keys and values behind the question mark; of a key given twice the first counts."""

    def __init__(self, text: str = "") -> None:
        try:
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=100)
        except ValueError:
            raise BadQueryError("too many keys in the query") from None
        self._values: dict[str, str] = {}
        for key, value in pairs:
            self._values.setdefault(unquote(key), value)

    def text(self, name: str) -> str:
        """The value; empty when the key is missing."""
        return self._values.get(name, "")

    def flag(self, name: str) -> bool:
        """`1`, `true` and the like; anything else that is no boolean is refused."""
        value = self._values.get(name, "").lower()
        if value in ("1", "t", "true"):
            return True
        if value in ("", "0", "f", "false"):
            return False
        raise BadQueryError(f"Error decoding boolean for '{name}': \"{value}\"")

    def number(self, name: str, default: int) -> int:
        """A whole number, not negative."""
        value = self._values.get(name, "")
        if not value:
            return default
        if not value.isdecimal() or len(value) > 18:
            raise BadQueryError(f"Error decoding int for '{name}': \"{value}\"")
        return int(value)
