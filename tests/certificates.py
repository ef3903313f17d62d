"""Certificates for tests: a test authority, and the certificates that it issues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

VALID_FOR = timedelta(days=1)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """Issues certificates for the loopback.

    Args:
        folder: where files are put; its name is the authority's.

    Attributes:
        certificate: the file to trust.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._name = folder, _named(folder.name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = folder / "authority.pem"
        made = self._signed(self._name, self._key, x509.BasicConstraints(True, None))
        self.certificate.write_bytes(made)

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return the files of a certificate and its key for a server on 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        certificate, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(self._signed(_named(name), key, address))
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, key_file

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> bytes:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - VALID_FOR,
            not_valid_after=now + VALID_FOR,
        )
        signed = builder.add_extension(extension, critical=False).sign(self._key, hashes.SHA256())
        return signed.public_bytes(Encoding.PEM)
