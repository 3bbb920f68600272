"""Certificate authorities of a test, and what they sign."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID


@cache
def _key(number: int) -> rsa.RSAPrivateKey:
    """Made once: it takes longer than all else here."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass(frozen=True)
class Authority:
    """Its files: `<name>-ca.pem`, and for each signed `<name>-<of>.pem` and `.key`."""

    name: str
    directory: Path
    number: int

    @property
    def ca(self) -> Path:
        path = self.directory / f"{self.name}-ca.pem"
        if not path.exists():
            path.write_bytes(self._certificate(_name(self.name), _key(self.number).public_key(), None, ca=True))
        return path

    def signs(self, of: str, hosts: tuple[str, ...] = (), *, expired: bool = False) -> tuple[Path, Path]:
        """Certificate and key, for the names and addresses of a server, or for a client."""
        assert self.ca.exists()
        key, certificate = self.directory / f"{self.name}-{of}.key", self.directory / f"{self.name}-{of}.pem"
        certificate.write_bytes(self._certificate(_name(of), _key(99).public_key(), hosts, expired=expired))
        key.write_bytes(
            _key(99).private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, key

    def _certificate(
        self,
        subject: x509.Name,
        key: rsa.RSAPublicKey,
        hosts: tuple[str, ...] | None,
        *,
        ca: bool = False,
        expired: bool = False,
    ) -> bytes:
        now = datetime.now(UTC)
        until = now - timedelta(hours=1) if expired else now + timedelta(days=30)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(_name(self.name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if hosts:
            names = [
                x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
                for host in hosts
            ]
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return made.sign(_key(self.number), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
