"""Which certificates are trusted does not depend on the version of Python, though 3.13 has other defaults."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from spark_nats.client import connect
from spark_nats.errors import NatsConnectionError
from spark_nats.options import connection_options
from tests.servers import ServerFactory


class Issued(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()


def issue(
    name: str,
    issuer: Issued | None = None,
    *,
    authority: bool = False,
    key_usage: bool = True,
    key_ids: bool = True,
    critical: bool = True,
) -> Issued:
    """A certificate, for 127.0.0.1 unless it is an authority's; without an issuer it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    signer = issuer.key if issuer else key
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder(serial_number=x509.random_serial_number())
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
    )
    if authority:
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=critical)
        if key_usage:
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            built = built.add_extension(usage, critical=True)
    else:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        built = built.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    if key_ids:
        built = built.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        known = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        built = built.add_extension(known, critical=False)
    return Issued(built.sign(signer, hashes.SHA256()), key)


Chain = tuple[Issued, str, str]
"""The server's certificate, the certificates that it sends after it, and those that the client trusts."""


def complete() -> Chain:
    root = issue("root", authority=True)
    return issue("server", root), "", root.pem


def an_authority_without_key_usage() -> Chain:
    root = issue("root", authority=True, key_usage=False)
    return issue("server", root), "", root.pem


def no_key_identifiers() -> Chain:
    root = issue("root", authority=True, key_ids=False)
    return issue("server", root, key_ids=False), "", root.pem


def basic_constraints_that_are_not_critical() -> Chain:
    root = issue("root", authority=True, critical=False)
    return issue("server", root), "", root.pem


def an_intermediate_as_trust_anchor() -> Chain:
    intermediate = issue("intermediate", issue("root", authority=True), authority=True)
    return issue("server", intermediate), intermediate.pem, intermediate.pem


def the_servers_own_certificate_as_trust_anchor() -> Chain:
    own = issue("server", issue("root", authority=True))
    return own, "", own.pem


TRUSTED = [
    complete,
    an_authority_without_key_usage,
    no_key_identifiers,
    basic_constraints_that_are_not_critical,
    an_intermediate_as_trust_anchor,
    the_servers_own_certificate_as_trust_anchor,
]
CHANGED = ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN  # what Python 3.13 has added to the defaults


@pytest.fixture(params=[0, CHANGED], ids=["before 3.13", "since 3.13"])
def defaults(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make contexts as either version of Python makes them."""
    real = ssl.create_default_context

    def create(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        context = real(*args, **kwargs)
        context.verify_flags = context.verify_flags & ~CHANGED | request.param
        return context

    monkeypatch.setattr(ssl, "create_default_context", create)


@pytest.mark.usefixtures("defaults")
def test_named_authorities_are_trusted_alike_on_each_python(server_factory: ServerFactory, tmp_path: Path) -> None:
    said = {}
    for chain in TRUSTED:
        said[chain.__name__] = attempt(server_factory, tmp_path, chain)
    assert said == dict.fromkeys(said, "")


@pytest.mark.usefixtures("defaults")
def test_another_authority_is_trusted_on_no_python(server_factory: ServerFactory, tmp_path: Path) -> None:
    def strange() -> Chain:
        own, sent, _ = complete()
        return own, sent, issue("root", authority=True).pem

    assert "cannot be verified for the name '127.0.0.1'" in attempt(server_factory, tmp_path, strange)


def attempt(server_factory: ServerFactory, directory: Path, chain: Callable[[], Chain]) -> str:
    """Connect to a server with such a certificate; return the error, which is empty if there is none."""
    own, sent, trusted = chain()
    certificate, key = directory / f"{chain.__name__}.pem", directory / f"{chain.__name__}.key"
    certificate.write_text(own.pem + sent)
    key.write_bytes(own.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    server = server_factory(f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}', jetstream=False)
    try:
        connect(connection_options(servers=server.url, tlsCaPem=trusted)).close()
    except NatsConnectionError as error:
        return str(error)
    finally:
        server.stop()
    return ""
