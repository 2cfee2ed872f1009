"""TLS from files: a certificate authority to trust, and a client certificate with its key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.errors import InvalidOptionError

if TYPE_CHECKING:
    import ssl

__all__ = ["tls_from_files"]


def tls_from_files(ca: str = "", cert: str = "", key: str = "") -> ssl.SSLContext:
    """Make an SSL context of PEM files; without an authority the system's are trusted.

    Raises:
        InvalidOptionError: a file cannot be read, or a key has no certificate.
    """
    if key and not cert:
        raise InvalidOptionError(f"TLS files: the key {key} needs its certificate")
    from ssl import SSLError, create_default_context  # Loaded only where TLS is used.

    try:
        context = create_default_context(cafile=ca or None)
        if cert:
            context.load_cert_chain(cert, key or None)
    except (OSError, SSLError) as error:
        raise InvalidOptionError(f"TLS files {', '.join(filter(None, (ca, cert, key)))}: {error}") from None
    return context
