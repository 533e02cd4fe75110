"""Certificates of servers and clients, from an authority of their own."""

from __future__ import annotations

from pathlib import Path

import trustme


class Certificates:
    """Files of an authority, and of certificates that it has issued."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, *names: str) -> tuple[Path, Path]:
        """The files of a certificate for these names, and of its key."""
        issued = self._authority.issue_cert(*names)
        certificate, key = self._directory / f"{names[0]}.pem", self._directory / f"{names[0]}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return certificate, key

    def config(self, name: str = "127.0.0.1", *lines: str) -> str:
        """The server's configuration of TLS."""
        certificate, key = self.issue(name)
        return f'tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{self.ca}"\n{chr(10).join(lines)} }}\n'

    def client(self, name: str) -> dict[str, str]:
        """The options of a client with a certificate."""
        certificate, key = self.issue(name)
        return {"tlsCertFile": str(certificate), "tlsKeyFile": str(key)}
