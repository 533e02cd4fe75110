"""TLS as a layer between a connection and its socket, from bytes to bytes; certificates are always verified."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator

from spark_nats.client.options import TlsOptions
from spark_nats.client.servers import Server
from spark_nats.client.transport import Layer, reason_of
from spark_nats.conditions import client as conditions
from spark_nats.errors import AuthorizationError, InvalidCredentialsError

_RECORD = 16384  # maximum bytes of a record


def make_tls_context(options: TlsOptions) -> ssl.SSLContext:
    """Return a context that verifies the certificate and the name of a server, with TLS 1.2 or newer.

    Raises:
        InvalidCredentialsError: a certificate or key cannot be used. The message shows no part of it.
    """
    if options.ca == "":
        raise InvalidCredentialsError(conditions.NO_AUTHORITIES())  # OpenSSL would trust the system's authorities
    try:
        ca = None if options.ca is None else options.ca.encode("ascii", "ignore").decode()  # comments may be in UTF-8
        context = ssl.create_default_context(cadata=ca)
    except ssl.SSLError:
        raise InvalidCredentialsError(conditions.AUTHORITIES_INVALID()) from None
    if options.ca is not None:
        # As the clients in Go trust what they are given, and the same on each Python: 3.13 changed both defaults.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an intermediate or the server's own certificate too
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # extensions that RFC 5280 demands may be missing
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # else a write could wait for a read
    if options.certificate is not None:
        try:
            with _temp_file(options.certificate) as certificate, _temp_file(options.key or options.certificate) as key:
                # Without a password OpenSSL would ask for one on the terminal.
                context.load_cert_chain(certificate, key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise InvalidCredentialsError(conditions.CLIENT_CERTIFICATE_INVALID(reason=error)) from None
    return context


class TlsLayer(Layer):
    """TLS from bytes to bytes, without a socket.

    A server may put each message into its own record. Python's TLS socket makes two system calls for every record; this
    layer receives many records at once.

    Raises ValueError for a server name that no certificate can have.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._error: OSError | None = None
        self._ended = False

    def continue_handshake(self) -> bool:
        """Continue the handshake; return True when it is done, raise OSError when it fails."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def add_received(self, data: bytes | None) -> None:
        """Take bytes from the server; None when it has closed the connection."""
        if data is None:
            self._incoming.write_eof()
        else:
            self._incoming.write(data)

    def decode_or_none_at_end(self) -> bytes | None:
        """Return all decrypted bytes; None when the server has closed the connection.

        Raises OSError when the bytes were altered on the way, or when the server ends TLS with an error alert.
        """
        parts: list[bytes] = []
        while not (self._error or self._ended):
            try:
                part = self._tls.read(_RECORD)
            except ssl.SSLWantReadError:
                return b"".join(parts)
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                part = b""
            except OSError as error:
                self._error = error
                break
            self._ended = not part
            parts.append(part)
        if any(parts):  # a server often sends the reason just before it closes; the next call reports the end
            return b"".join(parts)
        if self._error:
            raise self._error
        return None

    def encode_and_queue(self, data: memoryview) -> None:
        """Encrypt for the server."""
        while data:
            data = data[self._tls.write(data) :]  # one record at a time

    def take_due(self) -> bytes:
        """Return the bytes that are due to be sent."""
        return self._outgoing.read()


def check_client_certificate_accepted(error: OSError, server: Server) -> None:
    """Raise :class:`AuthorizationError` if a server has ended TLS because of the client's certificate.

    The server then sends one of the alerts 41 to 46, 48 and 116 of RFC 8446.
    """
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if "_ALERT_" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        said = conditions.CLIENT_CERTIFICATE_REFUSED(server=server, reason=reason_of(error))
        raise AuthorizationError(said) from None


@contextlib.contextmanager
def _temp_file(text: str) -> Iterator[str]:
    """Give a text a path, because ``ssl`` loads client certificates only from files; on Linux nothing is on a disk."""
    in_memory = hasattr(os, "memfd_create")  # on Linux
    with os.fdopen(os.memfd_create("pem"), "w+b") if in_memory else tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)  # flushes too; where /dev/fd shares the position, reading begins here
        yield f"/dev/fd/{file.fileno()}"
