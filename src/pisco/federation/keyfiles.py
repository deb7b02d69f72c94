"""Keys and certificates as files: in PEM, and private ones for their owner alone."""

from __future__ import annotations

import datetime as dt
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pisco.errors import InputError

T = TypeVar("T")

KEY, CERTIFICATE, REVOKED = "key.pem", "cert.pem", "revoked.pem"


def now() -> dt.datetime:
    """The time, as certificates write it."""
    return dt.datetime.now(dt.UTC)


def stamp(path: str | Path) -> tuple[int, int]:
    """What tells whether a file is still the one that was read."""
    found = os.stat(path)  # noqa: PTH116  (asked at every request: pathlib is not free)
    return found.st_mtime_ns, found.st_ino


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
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # the disk is full: half a key would be in the way of a whole one
        path.unlink()
        raise
    return key


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key of a file that nobody else can read."""
    key = read(path, lambda secret: serialization.load_pem_private_key(secret, None), "private key", "make a new kit")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise InputError(f"the key {path} can be read by others; run chmod 600 {path}")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path} holds a key of another kind; expected ECDSA, as `pisco federation` makes it")
    return key


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate of a file."""
    return read(path, x509.load_pem_x509_certificate, "certificate", "ask for a new one")


def read_bundle(path: Path) -> list[x509.Certificate]:
    """The certificates of an authority: its root, and those between it and members."""
    found = read(path, x509.load_pem_x509_certificates, "certificate", "ask for a new one")
    for each in found:
        try:
            signs = each.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except x509.ExtensionNotFound:
            signs = False
        if not signs:
            raise InputError(
                f"{path} holds the certificate of {each.subject.rfc4514_string()}, which may not sign others; put the "
                "authority's there, its root and those between"
            )
    return found


def read(path: Path, parse: Callable[[bytes], T], what: str, fix: str, unread: str = "check the path") -> T:
    """What a file holds; whatever is wrong with it is one `InputError`."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the {what} {path} ({error.strerror}); {unread}") from error
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is not a {what} in PEM; {fix}") from error


def pem(made: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    """The text of a certificate or of the list of revoked ones."""
    return made.public_bytes(serialization.Encoding.PEM)


def check_signed(certificate: x509.Certificate, bundle: bytes) -> bool:
    """Whether the authority signed the certificate itself, with the key of one of the certificates in its bundle."""
    return any(_issued_by(certificate, each) for each in _parsed(bundle))


def _issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


@functools.lru_cache(8)
def _parsed(bundle: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(bundle)


def elliptic(key: object) -> ec.EllipticCurvePublicKey:
    """A public key of the one kind that is used here."""
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError("a key is not ECDSA on P-256; let `pisco federation` make it")
    return key
