"""The federation's own certificate authority: it signs who is who, and which certificates are revoked.

    DIR/federation.toml             the plan
    DIR/authority/key.pem           the authority's private key: whoever has it can pose as anybody (mode 600)
    DIR/authority/cert.pem          its certificate, in every kit as ca.pem
    DIR/authority/issued/*.pem      every certificate ever signed, one file each
    DIR/authority/revoked.pem       the revoked serial numbers (a signed list), in every kit

Keys are ECDSA on P-256, which every TLS library accepts for TLS 1.3. Where members have certificates of another
authority, cert.pem holds its certificates and there is no key.pem; `signers` has the key for plans and lists.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pisco.errors import InputError
from pisco.federation import signers
from pisco.federation.keyfiles import (
    CERTIFICATE,
    KEY,
    REVOKED,
    elliptic,
    new_key,
    now,
    pem,
    read,
    read_bundle,
    read_certificate,
    read_key,
)
from pisco.files import atomic_write

AUTHORITY_DAYS = 3650
SKEW = dt.timedelta(minutes=10)
"""Certificates are valid from a little before they are signed, because clocks differ."""

ISSUED, AUTHORITY = "issued", "authority"


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
        """A new key and a certificate that signs itself; refuses a folder that has a key.

        A plan key that the folder has already signs the list of revoked certificates.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = new_key(folder / KEY)
        (folder / ISSUED).mkdir(exist_ok=True)
        name = _distinguished(federation, AUTHORITY)
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
        made._write_revoked({}, signers.signing_key(folder))
        return made

    @classmethod
    def adopt(cls, folder: Path, federation: str, bundle: Path) -> Authority:
        """Another authority's certificates, for members who have theirs of it; its folder has a plan key already."""
        text = b"".join(map(pem, read_bundle(bundle)))
        (folder / ISSUED).mkdir(exist_ok=True)
        atomic_write(folder / CERTIFICATE, text)
        made = cls(folder, federation)
        made._write_revoked({}, signers.signing_key(folder))
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
        if not (self.folder / KEY).is_file():
            raise InputError(
                f"certificates of {self.federation!r} come from another authority; give --certificate with the one "
                f"that {name!r} got there"
            )
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
        self.keep(name, certificate)
        return certificate

    def keep(self, name: str, certificate: x509.Certificate) -> None:
        """Keep a member's certificate, so that it can be revoked."""
        atomic_write(self.folder / ISSUED / f"{name}-{certificate.serial_number:x}.pem", pem(certificate))

    def issued(self, name: str | None = None) -> list[x509.Certificate]:
        """Every certificate kept so far, or those of one name, oldest first."""
        paths = [path for path in (self.folder / ISSUED).glob("*.pem") if name in (None, path.stem.rpartition("-")[0])]
        # Certificates have whole seconds; within one, the file's time says which came later.
        found = [(path.stat().st_mtime_ns, read_certificate(path)) for path in paths]
        found.sort(key=lambda pair: (pair[1].not_valid_before_utc, pair[0]))
        return [each for _, each in found]

    def trusted(self, name: str) -> list[x509.Certificate]:
        """The certificates of a name whose keys were not revoked, oldest first; they may be over."""
        gone = self.revoked()
        return [each for each in self.issued(name) if each.serial_number not in gone]

    def check_key(self, name: str, public: ec.EllipticCurvePublicKey) -> None:
        """Refuse to sign a key again all of whose certificates were revoked: who has a copy of it would be in again."""
        known, trusted = ([each.public_key() for each in found] for found in (self.issued(name), self.trusted(name)))
        if public in known and public not in trusted:
            raise InputError(
                f"the certificates of this key of {name!r} were revoked, and a new one would let in who has a copy of "
                "it; make a new key: `pisco federation request`, or `issue` with another --out and without --renew"
            )

    def revoked(self) -> dict[int, dt.datetime]:
        """Revoked numbers (`naming.number`), and since when."""
        listed = read_revoked(
            self.folder / REVOKED, signers.verifying_key(self.folder, self.certificate), self.federation
        )
        return {each.serial_number: each.revocation_date_utc for each in listed}

    def revoke(self, serials: list[int]) -> None:
        """Revoke the certificates with these numbers."""
        listed = self.revoked()
        self._write_revoked(dict.fromkeys(serials, now()) | listed, signers.signing_key(self.folder))

    def _write_revoked(self, serials: dict[int, dt.datetime], key: ec.EllipticCurvePrivateKey) -> None:
        at = now()
        builder = x509.CertificateRevocationListBuilder().issuer_name(_distinguished(self.federation, AUTHORITY))
        builder = builder.last_update(at - SKEW).next_update(at + dt.timedelta(days=AUTHORITY_DAYS))
        for serial, since in serials.items():
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since).build()
            builder = builder.add_revoked_certificate(entry)
        atomic_write(self.folder / REVOKED, pem(builder.sign(key, hashes.SHA256())))


def read_revoked(path: Path, signer: ec.EllipticCurvePublicKey, federation: str) -> x509.CertificateRevocationList:
    """The list of revoked certificates, if the key that signs plans signed it for this federation, of several."""
    unread = "without it nobody is let in"
    listed = read(path, x509.load_pem_x509_crl, "list of revoked certificates", "copy it again", unread)
    if not listed.is_signature_valid(signer) or listed.issuer != _distinguished(federation, AUTHORITY):
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

    proven, wanted, public = read(path, parse, "certificate request", "`pisco federation request` makes one")
    if not proven:
        raise InputError(f"the request {path} is not signed with its own key; make a new one")
    if wanted != name:
        raise InputError(f"the request {path} is for {wanted!r}, not {name!r}; name that one, or make a new one")
    return elliptic(public)


def common_name(signed: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """The name that a certificate or a request states."""
    found = signed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""


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
