"""Signed plans: the authority, or the plan key (`signers`), signs every plan with a version, in a comment at its end.

So a plan that somebody else changed is refused, however it came into a kit, and one file is all there is to copy.
Versions count the plans that the coordinator signed, in authority/plans; who has seen one takes no older one.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from pisco.errors import InputError
from pisco.federation import signers
from pisco.federation.plan import Federation
from pisco.files import atomic_write

_LINE = re.compile(r"^# signed (\d{1,9}) ([A-Za-z0-9+/=]{1,200})$", re.MULTILINE)
_CURVE = ec.ECDSA(hashes.SHA256())


def save(home: Path, plan: Federation, path: Path) -> None:
    """Write a plan with the signature of the authority in `home`."""
    plan.save(path, ending=_ending(home, plan))


def renew(home: Path, plan: Federation, path: Path) -> None:
    """Sign a plan that was written by hand, and leave its text as it is."""
    text = _LINE.sub("", path.read_text()).rstrip("\n") + "\n"
    atomic_write(path, (text + _ending(home, plan)).encode())


def _ending(home: Path, plan: Federation) -> str:
    version = _version(home / "authority" / "plans", plan.hash)
    signature = signers.signing_key(home / "authority").sign(_content(version, plan), _CURVE)
    return f"\n# signed {version} {base64.b64encode(signature).decode()}\n"


def check(path: Path, plan: Federation, signer: ec.EllipticCurvePublicKey) -> int:
    """The version of the plan in a file; refuses one that this key did not sign."""
    lines = _LINE.findall(path.read_text())
    if lines:
        version, signature = int(lines[-1][0]), lines[-1][1]
        try:
            signer.verify(base64.b64decode(signature, validate=True), _content(version, plan), _CURVE)
            return version
        except (InvalidSignature, binascii.Error):
            pass
    raise InputError(
        f"the plan {path} is not as the authority signed it; copy the coordinator's federation.toml there, "
        "which `pisco federation issue` and `change` sign"
    )


def _content(version: int, plan: Federation) -> bytes:
    return f"pisco plan {version} {plan.hash}".encode()


def _version(path: Path, digest: str) -> int:
    """The number of a plan among those signed; a new one where it is not the newest."""
    known = path.read_text().split() if path.exists() else []
    if not known or known[-1] != digest:
        known.append(digest)
        atomic_write(path, "".join(f"{each}\n" for each in known).encode())
    return len(known)
