"""A client's certificate: the names in it that may name a user."""

from __future__ import annotations

import ssl
from collections.abc import Collection
from typing import Any

__all__ = ["Certificate"]

# How a subject spells its parts, by the names of Python's ssl.
_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "postalCode": "POSTALCODE",
    "serialNumber": "SERIALNUMBER",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_ALTERNATIVES = ("email", "DNS", "URI")


class Certificate:
    """The verified certificate of a client.

    Args:
        fields: what `ssl.SSLObject.getpeercert` returns.
        encoded: the certificate itself, in DER.
    """

    def __init__(self, fields: dict[str, Any], encoded: bytes = b"") -> None:
        self._encoded = encoded
        named = fields.get("subjectAltName", ())
        self._names: list[str] = [value for kind in _ALTERNATIVES for key, value in named if key == kind]
        parts = [pair for group in fields.get("subject", ()) for pair in group]
        self._subject = sorted(f"{_SHORT.get(key, key)}={value}" for key, value in parts)

    @property
    def pem(self) -> str:
        """The certificate as text; empty when only its fields are known."""
        return ssl.DER_cert_to_PEM_cert(self._encoded) if self._encoded else ""

    def find_user(self, users: Collection[str]) -> str | None:
        """Return the user that the certificate names: by e-mail address, DNS name, URI, or subject in any order."""
        for name in self._names:
            if name in users:
                return name
        for name in users:
            if self._subject and "=" in name and _parts(name) == self._subject:
                return name
        return None


def _parts(subject: str) -> list[str]:
    """Split `CN=www,OU=eng` into its parts, sorted; a comma behind a backslash belongs to the value."""
    parts = subject.replace("\\,", "\0").split(",")
    pairs = [part.strip().partition("=") for part in parts]
    return sorted(f"{key.strip().upper()}={value.strip()}".replace("\0", ",") for key, _, value in pairs)
