"""The federation's own certificate authority: it signs who is who, and which certificates are revoked.

    DIR/federation.toml             the plan
    DIR/authority/key.pem           the authority's private key: whoever has it can pose as anybody (mode 600)
    DIR/authority/cert.pem          its certificate, in every kit as ca.pem
    DIR/authority/issued/*.pem      every certificate ever signed, one file each
    DIR/authority/revoked.pem       the revoked serial numbers (a signed list), in every kit

Keys are ECDSA on P-256, which every TLS library accepts for TLS 1.3.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pisco.errors import InputError
from pisco.files import atomic_write

T = TypeVar("T")

AUTHORITY_DAYS = 3650
SKEW = dt.timedelta(minutes=10)
"""Certificates are valid from a little before they are signed, because clocks differ."""

KEY, CERTIFICATE, REVOKED, ISSUED = "key.pem", "cert.pem", "revoked.pem", "issued"


def now() -> dt.datetime:
    """The time, as certificates write it."""
    return dt.datetime.now(dt.UTC)


def new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A private key in a new file of mode 600; an existing file is never overwritten."""
    key = ec.generate_private_key(ec.SECP256R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        # The mode is given when the file is made: there is no moment at which others can read it.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InputError(f"{path} exists and keys are never overwritten; choose another folder") from None
    with os.fdopen(handle, "wb") as file:
        file.write(secret)
    return key


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key of a file that nobody else can read."""
    key = _read(path, lambda secret: serialization.load_pem_private_key(secret, None), "private key", "make a new kit")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise InputError(f"the key {path} can be read by others; run chmod 600 {path}")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path} holds a key of another kind; expected ECDSA, as `pisco federation` makes it")
    return key


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate of a file."""
    return _read(path, x509.load_pem_x509_certificate, "certificate", "ask for a new one")


def _read(path: Path, parse: Callable[[bytes], T], what: str, fix: str, unread: str = "check the path") -> T:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the {what} {path} ({error.strerror}); {unread}") from error
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is not a {what} in PEM; {fix}") from error


def pem(made: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    """The text of a certificate or of the list of revoked ones."""
    return made.public_bytes(serialization.Encoding.PEM)


def tls_name(federation: str, name: str) -> str:
    """The name by which TLS knows a member, wherever it listens.

    >>> tls_name("hospitals", "agent-3")
    'agent-3.hospitals.pisco'
    """
    return f"{name}.{federation}.pisco"


def identity_uri(federation: str, name: str) -> str:
    """The same as an address that only a certificate can carry."""
    return f"pisco://{federation}/{name}"


@dataclass(frozen=True)
class Authority:
    """The authority of one federation, at its folder."""

    folder: Path
    federation: str

    @classmethod
    def create(cls, folder: Path, federation: str, days: int = AUTHORITY_DAYS) -> Authority:
        """A new key and a certificate that signs itself; refuses a folder that has a key."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = new_key(folder / KEY)
        (folder / ISSUED).mkdir(exist_ok=True)
        name = _distinguished(federation, "authority")
        public = key.public_key()
        usage = x509.KeyUsage(*_usages(sign_certificates=True))
        certificate = (
            _builder(name, name, public, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        atomic_write(folder / CERTIFICATE, pem(certificate))
        made = cls(folder, federation)
        made._write_revoked({}, key)
        return made

    @classmethod
    def open(cls, folder: Path, federation: str) -> Authority:
        """The authority that `create` made."""
        if not (folder / CERTIFICATE).is_file():
            raise InputError(f"there is no authority in {folder}; `pisco federation init` makes one")
        return cls(folder, federation)

    @property
    def certificate(self) -> x509.Certificate:
        """What everybody trusts."""
        return read_certificate(self.folder / CERTIFICATE)

    def check_days(self, days: float, start: dt.datetime) -> None:
        """Refuse a certificate that would outlive the authority."""
        end = self.certificate.not_valid_after_utc
        if not 0 < days <= AUTHORITY_DAYS:
            raise InputError(f"days is {days:g}, expected a number greater than 0 and at most {AUTHORITY_DAYS}")
        if start + dt.timedelta(days=days) > end:
            raise InputError(
                f"the authority itself ends on {end:%Y-%m-%d}, before {days:g} days are over; give fewer --days"
            )

    def sign(
        self, name: str, public: ec.EllipticCurvePublicKey, host: str, days: float, start: dt.datetime | None = None
    ) -> x509.Certificate:
        """A certificate that says the holder of a key is `name`; a copy is kept in `issued`."""
        issuer, start = self.certificate, start or now()
        self.check_days(days, start)
        names: list[x509.GeneralName] = [x509.DNSName(tls_name(self.federation, name))]
        names += [_host_name(host)] if host else []
        names += [x509.UniformResourceIdentifier(identity_uri(self.federation, name))]
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        certificate = (
            _builder(_distinguished(self.federation, name), issuer.subject, public, days, start)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(*_usages(sign_certificates=False)), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(elliptic(issuer.public_key())), critical=False
            )
            .sign(read_key(self.folder / KEY), hashes.SHA256())
        )
        atomic_write(self.folder / ISSUED / f"{name}-{certificate.serial_number:x}.pem", pem(certificate))
        return certificate

    def issued(self, name: str | None = None) -> list[x509.Certificate]:
        """Every certificate signed so far, or those of one name, oldest first."""
        paths = (self.folder / ISSUED).glob("*.pem")
        # Certificates have whole seconds; within one, the file's time says which came later.
        found = [(path.stat().st_mtime_ns, read_certificate(path)) for path in paths]
        found.sort(key=lambda pair: (pair[1].not_valid_before_utc, pair[0]))
        return [each for _, each in found if name in (None, common_name(each))]

    def trusted(self, name: str) -> list[x509.Certificate]:
        """The certificates of a name whose keys were not revoked, oldest first; they may be over."""
        gone = self.revoked()
        return [each for each in self.issued(name) if each.serial_number not in gone]

    def revoked(self) -> dict[int, dt.datetime]:
        """Revoked serial numbers, and since when."""
        listed = read_revoked(self.folder / REVOKED, self.certificate)
        return {each.serial_number: each.revocation_date_utc for each in listed}

    def revoke(self, serials: list[int]) -> None:
        """Revoke the certificates with these serial numbers."""
        listed = self.revoked()
        self._write_revoked(dict.fromkeys(serials, now()) | listed, read_key(self.folder / KEY))

    def _write_revoked(self, serials: dict[int, dt.datetime], key: ec.EllipticCurvePrivateKey) -> None:
        issuer, at = self.certificate, now()
        builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject)
        builder = builder.last_update(at - SKEW).next_update(issuer.not_valid_after_utc)
        for serial, since in serials.items():
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since).build()
            builder = builder.add_revoked_certificate(entry)
        atomic_write(self.folder / REVOKED, pem(builder.sign(key, hashes.SHA256())))


def read_revoked(path: Path, authority: x509.Certificate) -> x509.CertificateRevocationList:
    """The list of revoked certificates, if the authority signed it."""
    unread = "without it nobody is let in"
    listed = _read(path, x509.load_pem_x509_crl, "list of revoked certificates", "copy it again", unread)
    if not listed.is_signature_valid(elliptic(authority.public_key())):
        raise InputError(f"{path} is not signed by this federation's authority; copy it again")
    return listed


def new_request(folder: Path, federation: str, name: str) -> Path:
    """A new key and a request to sign it: the key stays where it was made."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = new_key(folder / KEY)
    request = x509.CertificateSigningRequestBuilder().subject_name(_distinguished(federation, name))
    path = folder / "request.pem"
    atomic_write(path, request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return path


def read_request(path: Path, name: str) -> ec.EllipticCurvePublicKey:
    """The public key that a request proves to hold; of the rest only the name is looked at."""

    def parse(text: bytes) -> tuple[bool, str, object]:
        request = x509.load_pem_x509_csr(text)
        return request.is_signature_valid, common_name(request), request.public_key()

    proven, wanted, public = _read(path, parse, "certificate request", "`pisco federation request` makes one")
    if not proven:
        raise InputError(f"the request {path} is not signed with its own key; make a new one")
    if wanted != name:
        raise InputError(f"the request {path} is for {wanted!r}, not {name!r}; name that one, or make a new one")
    return elliptic(public)


def common_name(signed: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """The name that a certificate or a request states."""
    found = signed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""


def check_signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _distinguished(federation: str, name: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    days: float,
    start: dt.datetime | None = None,
) -> x509.CertificateBuilder:
    start = start or now()
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(start - SKEW)
    builder = builder.not_valid_after(start + dt.timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _usages(*, sign_certificates: bool) -> list[bool]:
    """The nine flags of a certificate's use: signing in a handshake, or signing certificates and lists."""
    return [not sign_certificates, *[False] * 4, sign_certificates, sign_certificates, False, False]


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def elliptic(key: object) -> ec.EllipticCurvePublicKey:
    """A public key of the one kind that is used here."""
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError("a key is not ECDSA on P-256; let `pisco federation` make it")
    return key
