"""The plan key: what signs plans and the list of revoked certificates, where that is not the authority's own key.

    DIR/authority/plan.key    the private part (mode 600), or instead of it
    DIR/authority/sign-with   a command that signs: with a key in a token, say, which never leaves it
    DIR/authority/plan.pem    the public part, in every kit

With certificates of another authority there is always one: that authority does not sign our plans, and whoever signs
the plans cannot make members. The command reads what is to be signed and writes a signature with ECDSA and SHA-256 in
DER, as `openssl dgst -sha256 -sign` does.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any, NoReturn

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from pisco.errors import InputError
from pisco.federation import keyfiles
from pisco.files import atomic_write

PRIVATE, PUBLIC, COMMAND = "plan.key", "plan.pem", "sign-with"


class CommandKey(ec.EllipticCurvePrivateKey):
    """A private key that only a command has; `cryptography` signs with it as with its own."""

    def __init__(self, command: str, public: ec.EllipticCurvePublicKey):
        self.command, self._public = command, public

    def sign(self, data: Any, signature_algorithm: ec.EllipticCurveSignatureAlgorithm) -> bytes:
        """What the command answers, if it is the key's signature."""
        try:
            done = subprocess.run(shlex.split(self.command), input=bytes(data), stdout=subprocess.PIPE, check=True)
            self._public.verify(done.stdout, bytes(data), signature_algorithm)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise InputError(f"the command {self.command!r} cannot sign ({error}); try it by hand") from None
        except InvalidSignature:
            raise InputError(
                f"what {self.command!r} writes is not a signature of {PUBLIC}'s key; it must be ECDSA with SHA-256 in "
                "DER, of what it reads"
            ) from None
        return done.stdout

    def public_key(self) -> ec.EllipticCurvePublicKey:
        return self._public

    @property
    def curve(self) -> ec.EllipticCurve:
        return self._public.curve

    @property
    def key_size(self) -> int:
        return self._public.key_size

    def _no(self, *_: Any, **__: Any) -> NoReturn:
        raise InputError(f"the key that {self.command!r} signs with cannot be read")

    exchange = private_numbers = private_bytes = __copy__ = __deepcopy__ = _no


def separate(folder: Path, command: str | None = None, public: Path | None = None) -> None:
    """Give an authority's folder a plan key: a new one, or that of a command, whose public part is in a file."""
    if (command is None) != (public is None):
        raise InputError("--sign-with and --plan-key go together: the command, and the public part of its key in PEM")
    if command is not None and public is not None:
        key = _read_public(public)
        CommandKey(command, key).sign(b"pisco", ec.ECDSA(hashes.SHA256()))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # not before: what fails leaves nothing behind
        atomic_write(folder / COMMAND, command.encode())
    else:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = keyfiles.new_key(folder / PRIVATE).public_key()
    atomic_write(folder / PUBLIC, key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def signing_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """What signs plans and lists, in an authority's folder."""
    if (folder / COMMAND).is_file():
        return CommandKey((folder / COMMAND).read_text(), _read_public(folder / PUBLIC))
    apart = (folder / PUBLIC).is_file()
    return keyfiles.read_key(folder / (PRIVATE if apart else keyfiles.KEY))


def verifying_key(folder: Path, authority: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """Whose signature plans and lists must have, in a kit or an authority's folder."""
    apart = (folder / PUBLIC).is_file()
    return _read_public(folder / PUBLIC) if apart else keyfiles.elliptic(authority.public_key())


def _read_public(path: Path) -> ec.EllipticCurvePublicKey:
    return keyfiles.elliptic(keyfiles.read(path, load_pem_public_key, "public key", "copy it again"))
