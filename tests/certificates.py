"""Certificates for tests, made when they are asked for: an authority, and what it or nobody has signed.

Elliptic keys (P-256), because every MicroPython port with TLS takes them and making one takes no time.
"""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key as files: PEM and, with ``.der`` for ``.pem``, DER."""

    certificate: x509.Certificate
    private: ec.EllipticCurvePrivateKey
    cert: Path
    key: Path

    @property
    def cert_der(self) -> Path:
        return self.cert.with_suffix(".der")

    @property
    def key_der(self) -> Path:
        return self.key.with_suffix(".der")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _subject(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def make(
    folder: Path,
    file: str,
    names: tuple[str, ...] = (),
    *,
    issuer: Certificate | None = None,
    authority: bool = False,
    expired: bool = False,
    later: datetime.timedelta = datetime.timedelta(0),
    password: bytes | None = None,
) -> Certificate:
    """Make a certificate for ``names`` (DNS names, addresses), signed by ``issuer`` or by itself, as ``file``.pem.

    ``later``: valid so much later than now, as for a board whose clock is so much behind.
    """
    private = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.timezone.utc) + later
    begin, end = (now - 3 * _DAY, now - _DAY) if expired else (now - _DAY, now + 30 * _DAY)
    subject = _name(file)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
    )
    if issuer is not None:
        key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.private.public_key())
        builder = builder.add_extension(key_id, critical=False)
    if authority:
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
        )
        signs = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
            **usage,
        )
        builder = builder.add_extension(signs, critical=True)
    if names:
        subjects = x509.SubjectAlternativeName([_subject(name) for name in names])
        builder = builder.add_extension(subjects, critical=False)
    certificate = builder.sign(issuer.private if issuer else private, hashes.SHA256())
    made = Certificate(certificate, private, folder / f"{file}.pem", folder / f"{file}.key.pem")
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password)
    for encoding, cert, key in (
        (serialization.Encoding.PEM, made.cert, made.key),
        (serialization.Encoding.DER, made.cert_der, made.key_der),
    ):
        cert.write_bytes(certificate.public_bytes(encoding))
        form = serialization.PrivateFormat.TraditionalOpenSSL
        if password is not None:
            form = serialization.PrivateFormat.PKCS8
        key.write_bytes(private.private_bytes(encoding, form, encryption))
    return made


class Pki:
    """What the tests of TLS need, in ``folder``: an authority, servers it vouches for or should not, a client."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.ca = make(folder, "ca", authority=True)
        self.stranger = make(folder, "stranger", authority=True)
        self.server = make(folder, "server", ("localhost", "127.0.0.1"), issuer=self.ca)
        self.elsewhere = make(folder, "elsewhere", ("elsewhere.example",), issuer=self.ca)
        self.expired = make(folder, "expired", ("localhost", "127.0.0.1"), issuer=self.ca, expired=True)
        self.client = make(folder, "client", ("client",), issuer=self.ca)
        self.locked = make(folder, "locked", ("client",), issuer=self.ca, password=b"open sesame")

    def listener(self, certificate: Certificate, clients: bool = False) -> dict[str, object]:
        """mosquitto's settings for a TLS listener; with ``clients``, these must show a certificate."""
        return {
            "cafile": self.ca.cert,
            "certfile": certificate.cert,
            "keyfile": certificate.key,
            "require_certificate": "true" if clients else "false",
        }
