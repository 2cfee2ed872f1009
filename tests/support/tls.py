"""The suite's certificates: a server with TLS, and clients that trust it."""

import ssl
from pathlib import Path

CERTIFICATES = Path(__file__).parents[1] / "conformance" / "certificates"
TLS = (
    f'tls {{ cert_file: "{CERTIFICATES / "server.pem"}", key_file: "{CERTIFICATES / "server-key.pem"}", '
    f'ca_file: "{CERTIFICATES / "ca.pem"}"'
)


def client_context(certificate=""):
    """A context that trusts the suite's authority, with a client certificate if one is named."""
    context = ssl.create_default_context(cafile=CERTIFICATES / "ca.pem")
    if certificate:
        context.load_cert_chain(CERTIFICATES / f"{certificate}.pem", CERTIFICATES / f"{certificate}-key.pem")
    return context
