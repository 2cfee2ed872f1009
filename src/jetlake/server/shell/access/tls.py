"""TLS: the contexts of both ends, and a channel from ciphertext to plaintext and back that touches no socket."""

from __future__ import annotations

import ssl

from jetlake.errors import ConfigError, JetlakeError
from jetlake.server.config.leaf_options import LeafTls
from jetlake.server.config.options import TlsOptions
from jetlake.server.shell.access.certificate import Certificate

__all__ = [
    "TLS_HANDSHAKE",
    "TlsChannel",
    "TlsError",
    "certificate_of",
    "client_context",
    "describe_tls",
    "server_context",
]

TLS_HANDSHAKE = 0x16
"""The first byte of a client that begins TLS; no verb of the protocol begins with it."""

_READ_SIZE = 256 * 1024
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsError(JetlakeError):
    """The peer violated TLS, or closed the channel during the handshake."""


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """Make the server's TLS context from the files that the options name.

    Raises:
        ConfigError: a file is missing or malformed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context, options)
    try:
        context.load_cert_chain(options.cert_file, options.key_file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"error parsing X509 certificate/key pair: {_reason(error, options.cert_file)}") from None
    if options.ca_file:
        try:
            context.load_verify_locations(options.ca_file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"failed to parse root ca certificate: {_reason(error, options.ca_file)}") from None
    if options.verify:
        context.verify_mode = ssl.CERT_REQUIRED
        if not options.ca_file:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def client_context(options: LeafTls | None) -> ssl.SSLContext:
    """Make the TLS context of a connection to a hub; None = with the certificates of the system.

    Raises:
        ConfigError: a file is missing or malformed.
    """
    context = ssl.create_default_context()
    if options is None:
        return context
    if options.ca_file:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(options.ca_file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"failed to parse root ca certificate: {_reason(error, options.ca_file)}") from None
    _restrict(context, options)
    if options.cert_file:
        try:
            context.load_cert_chain(options.cert_file, options.key_file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"error parsing X509 certificate/key pair: {_reason(error, options.cert_file)}") from None
    if options.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _restrict(context: ssl.SSLContext, options: TlsOptions | LeafTls) -> None:
    if options.min_version:
        if options.min_version not in _VERSIONS:
            raise ConfigError(f"tls min_version must be 1.2 or 1.3, not {options.min_version!r}")
        context.minimum_version = _VERSIONS[options.min_version]
    if options.cipher_suites:
        try:
            context.set_ciphers(options.cipher_suites)
        except ssl.SSLError:
            raise ConfigError(f"this OpenSSL has none of the cipher suites {options.cipher_suites}") from None


def _reason(error: Exception, path: str) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{path}: {error.reason or error}"
    return f"{path}: {error.strerror}" if isinstance(error, OSError) else f"{path}: {error}"


def certificate_of(channel: ssl.SSLObject) -> Certificate | None:
    """Return the client's certificate; None when it showed none, or none was verified."""
    fields = channel.getpeercert()
    return Certificate(fields, channel.getpeercert(binary_form=True) or b"") if fields else None


def describe_tls(channel: ssl.SSLObject) -> dict[str, str]:
    """Name version and cipher, with the keys of monitoring."""
    cipher = channel.cipher()
    version = (channel.version() or "").removeprefix("TLSv")
    return {"tls_version": version, "tls_cipher_suite": cipher[0] if cipher else ""}


class TlsChannel:
    """The TLS of one connection: ciphertext in, plaintext out, and the other way round.

    Attributes:
        object: the channel as Python's `ssl` knows it.
        established: the handshake is complete.
        ended: the peer has closed the channel.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.established = False
        self.ended = False

    def receive(self, data: bytes) -> bytes:
        """Decrypt what the socket received; `to_send` may have an answer afterwards.

        Raises:
            TlsError: the peer does not speak TLS, or has no valid certificate.
        """
        self._incoming.write(data)
        try:
            if not self.established:
                self.object.do_handshake()
                self.established = True
            return self._read_all()
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLCertVerificationError as error:
            raise TlsError(f"failed to verify certificate: {error.verify_message}") from None
        except (ssl.SSLError, ValueError) as error:
            raise TlsError(getattr(error, "reason", None) or str(error)) from None

    def _read_all(self) -> bytes:
        chunks = []
        while True:
            try:
                chunk = self.object.read(_READ_SIZE)
            except ssl.SSLWantReadError:
                break
            if not chunk:
                self._close()
                break
            chunks.append(chunk)
        return b"".join(chunks)

    def _close(self) -> None:
        self.ended = True
        try:
            self.object.unwrap()  # leaves close_notify to be sent
        except ssl.SSLError:
            pass

    def encrypt(self, data: bytes) -> bytes:
        """Encrypt; nothing when the peer has closed the channel, which ends both directions."""
        view = memoryview(b"" if self.ended else data)
        while view:
            view = view[self.object.write(view) :]
        return self._outgoing.read()

    def finish(self) -> bytes:
        """Close the channel, and return the bytes that tell the peer so."""
        if self.established and not self.ended:
            self._close()
        return self._outgoing.read()

    def to_send(self) -> bytes:
        """Take the bytes of the handshake to send, or the alert after an error."""
        return self._outgoing.read()

    def certificate(self) -> Certificate | None:
        """Return the client's certificate; None when it showed none, or none was verified."""
        return certificate_of(self.object)

    def describe(self) -> dict[str, str]:
        """Name version and cipher, with the keys of monitoring."""
        return describe_tls(self.object)
