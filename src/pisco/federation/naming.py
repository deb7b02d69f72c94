"""Whom a certificate names: a member of the plan, by the plan's own authority or by one that members already have.

Certificates of the federation's own authority carry the member's name, the federation's, and an address that joins
both. Those of another authority carry none of these. The plan then says for every member, and for the server, which
DNS name of the certificate's subject alternative names is its own, and no other field is looked at.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pisco.errors import InputError
from pisco.federation import authority as ca
from pisco.federation import keyfiles

if TYPE_CHECKING:
    from pisco.federation.plan import Federation


class Refused(Exception):
    """A peer is not let in; the message is the one line for the log."""


def member_of(certificate: x509.Certificate, plan: Federation) -> str:
    """The member that a certificate names; `Refused` where it names none, or two, or has a key of another kind."""
    if not plan.certificates:
        name, federation = ca.common_name(certificate), _federation(certificate)
        if federation != plan.name:
            raise Refused(f"{name!r} is of another federation, {federation!r}")
        if ca.identity_uri(federation, name) not in _names(certificate, x509.UniformResourceIdentifier):
            raise Refused(f"the certificate of {name!r} was made for another purpose")
        return name
    shown = {each.lower() for each in _names(certificate, x509.DNSName)}
    found = [name for name, dns in plan.certificates.items() if dns in shown]
    if len(found) != 1:
        # Two: whoever has it could pass for either.
        whom = f"{found[0]!r} and {found[1]!r} at once" if found else "no member of the plan"
        raise Refused(f"the certificate for {', '.join(sorted(shown))[:100] or 'no DNS name'} names {whom}")
    try:
        keyfiles.elliptic(certificate.public_key())
    except InputError:
        raise Refused(f"the certificate of {found[0]!r} is not for a key of ECDSA on P-256") from None
    return found[0]


def number(certificate: x509.Certificate, plan: Federation) -> int:
    """What stands for a certificate in the list of revoked ones: its serial number, where the authority is ours.

    Other authorities may give one number twice, and sign a copied key again: there it is the hash of the key.
    """
    if not plan.certificates:
        return certificate.serial_number
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return int.from_bytes(hashlib.sha256(key).digest()[:19], "big")


def check_purposes(certificate: x509.Certificate) -> str | None:
    """What a certificate lacks with which one both calls and is called; None: nothing."""
    try:
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return None
    wanted = {"clientAuth": ExtendedKeyUsageOID.CLIENT_AUTH, "serverAuth": ExtendedKeyUsageOID.SERVER_AUTH}
    return next((f"is not for {name}" for name, each in wanted.items() if each not in purposes), None)


def _federation(certificate: x509.Certificate) -> str:
    found = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(found[0].value) if len(found) == 1 else ""


def _names(certificate: x509.Certificate, kind: type[x509.DNSName] | type[x509.UniformResourceIdentifier]) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(kind)
