"""A kit: what one machine needs to take part, in one folder, and what it takes to let others in.

KIT/key.pem           the private key, mode 600; it never leaves this folder
KIT/cert.pem          who this is, signed by the authority
KIT/ca.pem            the authority's certificate, or those of an authority that members already had
KIT/plan.pem          the public part of the key that signs plans, where it is not the authority's own
KIT/federation.toml   the plan, and beside it the files that it names
KIT/revoked.pem       the revoked certificates
"""

from __future__ import annotations

import datetime as dt
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from pisco.errors import InputError
from pisco.federation import authority as ca
from pisco.federation import keyfiles, signed, signers
from pisco.federation.naming import Refused, check_purposes, member_of, number
from pisco.federation.plan import Federation
from pisco.federation.roster import SERVER, host_of
from pisco.files import atomic_write, read_json

log = logging.getLogger("pisco.federation")

PLAN = "federation.toml"
SOON = dt.timedelta(days=14)


def require_tls13() -> None:
    """Rule out TLS 1.2; call this before grpc is imported.

    grpc has no switch for the least version. Its list of ciphers is for TLS 1.2 alone, and one that needs RSA
    cannot be used with our ECDSA certificates: every handshake below TLS 1.3 fails.
    """
    os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES128-GCM-SHA256"


@dataclass(eq=False)
class Kit:
    """One member's kit, checked when it is read.

    `proxy` is the HTTP proxy through which others are dialled (None: that of the environment, if any), `own_relay` the
    address of a relay in this process.
    """

    folder: Path
    name: str
    federation: Federation
    key: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    authority: bytes = field(repr=False)
    signer: ec.EllipticCurvePublicKey = field(repr=False)
    not_after: dt.datetime
    version: int = 0
    proxy: str | None = None
    own_relay: str | None = None
    _stamp: tuple[int, int] | None = field(default=None, repr=False)
    _listed: dt.datetime | None = field(default=None, repr=False)
    _plan_stamp: tuple[int, int] | None = field(default=None, repr=False)
    _own_stamp: tuple[int, int] | None = field(default=None, repr=False)
    _memory: Path | None = field(default=None, repr=False)
    _warned: str | None = field(default=None, repr=False)
    _revoked: frozenset[int] = field(default=frozenset(), repr=False)
    _known: dict[bytes, tuple[str, x509.Certificate]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._list = str(self.folder / ca.REVOKED)
        self._own = str(self.folder / ca.CERTIFICATE)

    @classmethod
    def load(cls, folder: str | Path) -> Kit:
        """Read a kit; whatever does not fit together is one `InputError`."""
        folder = Path(folder)
        if not folder.is_dir():
            raise InputError(f"there is no kit {folder}; `pisco federation issue` makes one")
        for file in (ca.KEY, ca.CERTIFICATE, "ca.pem", PLAN, ca.REVOKED):
            if not (folder / file).is_file():
                raise InputError(f"the kit {folder} lacks {file}; {_missing(folder, file)}")
        plan = Federation.load(folder / PLAN)
        if plan.certificates and not (folder / signers.PUBLIC).is_file():
            raise InputError(f"the kit {folder} lacks {signers.PUBLIC}; ask the coordinator for a whole one")
        key, certificate = ca.read_key(folder / ca.KEY), ca.read_certificate(folder / ca.CERTIFICATE)
        bundle = keyfiles.read_bundle(folder / "ca.pem")
        trusted, signer = b"".join(map(ca.pem, bundle)), signers.verifying_key(folder, bundle[0])
        if not keyfiles.check_signed(certificate, trusted):
            raise InputError(f"the certificate in {folder} is not signed by its ca.pem; ask for a new kit")
        if key.public_key() != certificate.public_key():
            raise InputError(f"the key in {folder} is not the one its certificate is for; ask for a new kit")
        try:
            name = member_of(certificate, plan)
        except Refused as error:
            raise InputError(
                f"the certificate in {folder} does not fit its plan, of {plan.name!r}: {error}; ask for a new kit"
            ) from None
        if name not in (*plan.helpers, *plan.names):
            raise InputError(f"the plan in {folder} has no agent {name!r}; copy the newest federation.toml there")
        kit = cls(
            folder, name, plan, (folder / ca.KEY).read_bytes(), ca.pem(certificate), trusted, signer,
            certificate.not_valid_after_utc, signed.check(folder / PLAN, plan, signer),
        )  # fmt: skip
        problem = kit._why_not(certificate) or check_purposes(certificate)
        if problem:
            raise InputError(
                f"the certificate of {name!r} {problem}; check this machine's clock, or {kit._renewal('ask for')}"
            )
        return kit

    @property
    def warning(self) -> str | None:
        """A sentence when the certificate ends soon."""
        left = self.not_after - ca.now()
        if left > SOON:
            return None
        when = f"on {self.not_after:%Y-%m-%d %H:%M} UTC"
        ends = f"ends in {left.days} days, {when}" if left > dt.timedelta() else f"ended {when}: nobody talks to us"
        return f"the certificate of {self.name!r} {ends}; {self._renewal('get')}"

    def _renewal(self, verb: str) -> str:
        if self.federation.certificates:
            return (
                f"{verb} a new one of its authority, for the same key, and put it into {self.folder / ca.CERTIFICATE}"
            )
        return f"{verb} a new one (`pisco federation issue {self.name} --renew`)"

    @property
    def revoked(self) -> frozenset[int]:
        """Revoked numbers (`naming.number`); read again when the file has changed.

        A list that is broken, gone or older leaves the last good one in force; past a restart too, see `remember`.
        """
        try:
            stamp = keyfiles.stamp(self._list)
            if stamp != self._stamp:
                listed = ca.read_revoked(Path(self._list), self.signer, self.federation.name)
                if self._in_force(listed):
                    self._revoked = frozenset(each.serial_number for each in listed)
                    self._listed = listed.last_update_utc
                    if self._memory is not None:
                        atomic_write(self._memory, ca.pem(listed))
                else:
                    log.warning("%s is older than the list seen before, which stays in force", self._list)
                self._stamp = stamp  # last: other threads take the list as it is once the stamp fits
        except (OSError, InputError):
            if self._stamp is None:
                raise
        return self._revoked

    def _in_force(self, listed: x509.CertificateRevocationList) -> bool:
        """Whether a list is not older than the one seen before: they are dated in whole seconds, and only grow."""
        return self._listed is None or (listed.last_update_utc, len(listed)) >= (self._listed, len(self._revoked))

    @property
    def listed(self) -> float:
        """When the list of revoked certificates that is in force was signed, in seconds."""
        _ = self.revoked
        return self._listed.timestamp() if self._listed else 0.0

    def remember(self, folder: Path) -> None:
        """Keep the newest list, and the plan's version, in a folder of our own: a restart takes no older ones."""
        memory = folder / ca.REVOKED
        if memory.exists():
            try:
                listed = ca.read_revoked(memory, self.signer, self.federation.name)
            except InputError as error:
                raise InputError(
                    f"{error}; where {folder} is the state of another federation, give an empty folder (--state)"
                ) from None
            if self._in_force(listed):
                self._revoked, self._listed = frozenset(each.serial_number for each in listed), listed.last_update_utc
        self._memory, self._stamp = memory, None
        _ = self.revoked
        seen = folder / "plan.version"
        fix = "bring it back from a copy, or write the newest plan's version there"
        before = read_json(seen, fix) if seen.exists() else 0
        if not isinstance(before, int):
            raise InputError(f"{seen} is damaged; {fix}")
        if before > self.version:
            raise InputError(
                f"the plan in {self.folder} is version {self.version}, and version {before} was in force "
                "here; copy the coordinator's newest federation.toml there"
            )
        atomic_write(seen, str(self.version).encode())

    def newer_plan(self) -> Federation:
        """The plan that lies in the kit now; an older one than before, or one that is not signed, is refused."""
        plan = Federation.load(self.folder / PLAN)
        version = signed.check(self.folder / PLAN, plan, self.signer)
        if version < self.version:
            raise InputError(f"it is version {version}, and version {self.version} is in force")
        if self._memory is not None:
            atomic_write(self._memory.with_name("plan.version"), str(version).encode())
        self.version = version
        return plan

    def look_for_certificate(self) -> None:
        """Take a renewed certificate that lies in the kit now: of the same name, for the same key, and in force.

        And say every day that ours ends soon: a run may be longer than the time from its start until then.
        """
        if self.warning != self._warned:
            self._warned = self.warning
            if self._warned:
                log.warning("%s", self._warned)
        try:
            stamp = keyfiles.stamp(self._own)
            if stamp == self._own_stamp:
                return
            self._own_stamp = stamp
            new, old = ca.read_certificate(Path(self._own)), x509.load_pem_x509_certificate(self.certificate)
            if new == old:
                return
            problem = "" if self.identify(ca.pem(new)) == self.name else "names another member"
            if not problem and new.public_key() != old.public_key():
                problem = "is for another key, which needs a restart"
        except (OSError, InputError, Refused) as error:
            problem = str(error)
        if problem:
            log.warning("the new certificate in %s is not taken: %s", self.folder, problem)
            return
        self.certificate, self.not_after = ca.pem(new), new.not_valid_after_utc  # pyright: ignore[reportPossiblyUnbound]
        log.info("took the renewed certificate, valid until %s", f"{self.not_after:%Y-%m-%d %H:%M} UTC")

    def plan_now(self) -> Federation:
        """The plan, read again when the file has changed; one that cannot be taken leaves the last one in force."""
        self.look_for_certificate()
        try:
            stamp = keyfiles.stamp(self.folder / PLAN)
            if stamp != self._plan_stamp:
                self._plan_stamp = stamp
                self.federation = self.newer_plan()
        except (OSError, InputError) as error:
            log.warning("the new plan is ignored: %s", error)
        return self.federation

    def server_name(self, peer: str) -> str:
        """The name that TLS must find in a peer's certificate (`grpc.ssl_target_name_override`)."""
        return self.federation.certificates.get(peer) or ca.tls_name(self.federation.name, peer)

    def identify(self, presented: bytes) -> str:
        """The member that a certificate (PEM, from the handshake) belongs to, or `Refused`.

        Ask at every request: a connection may outlive its certificate.
        """
        known = self._known.get(presented)
        if known is None:
            certificate = self._read(presented)
            if len(self._known) >= 4096:  # bounded, though only the authority can mint such certificates
                self._known.clear()
            self._known[presented] = known = (member_of(certificate, self.federation), certificate)
        name, certificate = known
        problem = self._why_not(certificate)
        if problem:
            raise Refused(f"the certificate of {name!r} {problem}")
        return name

    def _read(self, presented: bytes) -> x509.Certificate:
        try:
            certificate = x509.load_pem_x509_certificate(presented)
            _ = certificate.extensions, (name := ca.common_name(certificate))
        except ValueError:  # parts of a certificate are read only when asked for
            raise Refused("what it presents is not a certificate") from None
        if not keyfiles.check_signed(certificate, self.authority):
            raise Refused(f"the certificate of {name!r} is signed by another authority")
        return certificate

    def _why_not(self, certificate: x509.Certificate) -> str | None:
        at = ca.now()
        if at > certificate.not_valid_after_utc:
            return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        if at < certificate.not_valid_before_utc:
            return f"is valid only from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on"
        return "has been revoked" if number(certificate, self.federation) in self.revoked else None


def issue(
    home: Path,
    plan: Federation,
    name: str,
    folder: Path,
    *,
    days: float = 365,
    request: Path | None = None,
    renew: bool = False,
    certificate: Path | None = None,
    start: dt.datetime | None = None,
) -> x509.Certificate | None:
    """Make a member's kit, or renew its certificate.

    Args:
      home: the coordinator's folder, with the authority in it.
      plan: what goes into the kit.
      name: of an agent in the plan, or the server's.
      folder: of the kit.
      days: how long the certificate is valid.
      request: a request made by the agent, whose key is then never on this machine.
      renew: sign the key that the kit already has, or that the member's last certificate is for.
      certificate: the one that the member has of another authority, where the plan is for such; without it the
        member puts it into its kit, beside the key.
      start: from when the days count, if not from now.
    """
    if name not in (*plan.helpers, *plan.names):
        raise InputError(
            f"{plan.name!r} has no agent {name!r}; it has {', '.join(plan.names)} and {', '.join(plan.helpers)}"
        )
    signer = ca.Authority.open(home / "authority", plan.name)
    if bool(plan.certificates) < bool(certificate) or (bool(plan.certificates) and (request is not None or renew)):
        raise InputError(
            "a plan that names certificates takes --certificate, not --request or --renew; without named certificates "
            "leave --certificate out"
        )
    if plan.certificates:
        return _bring(home, plan, name, folder, certificate)
    signer.check_days(days, start or ca.now())
    if request is not None:
        public = ca.read_request(request, name)
    elif renew and (folder / ca.KEY).exists():
        public = ca.read_key(folder / ca.KEY).public_key()
    elif renew:
        known = signer.trusted(name)
        if not known:
            raise InputError(
                f"{name!r} has no certificate to renew, and {folder} no key; leave out --renew for a new one"
            )
        public = ca.elliptic(known[-1].public_key())  # the key itself is where it was made
    if (folder / ca.CERTIFICATE).exists() and not renew:
        raise InputError(
            f"{folder} is a kit already; give --renew for a new certificate on its key, or another --out for a new key"
        )
    if (folder / ca.KEY).exists() and not renew and request is None:
        raise InputError(
            f"{folder} has a key without a certificate and keys are never overwritten; give --renew to sign that one"
        )
    if request is not None or renew:
        signer.check_key(name, public)  # pyright: ignore[reportPossiblyUnbound]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if request is None and not renew:
        public = ca.new_key(folder / ca.KEY).public_key()
    made = signer.sign(name, public, _host(plan, name), days, start)  # pyright: ignore[reportPossiblyUnbound]
    refresh(home, plan, folder)
    atomic_write(folder / ca.CERTIFICATE, ca.pem(made))
    return made


def _bring(home: Path, plan: Federation, name: str, folder: Path, path: Path | None) -> x509.Certificate | None:
    """A kit for a member with a certificate of another authority, and without its key."""
    brought = None if path is None else ca.read_certificate(path)
    if brought is not None:
        authority = ca.Authority.open(home / "authority", plan.name)
        if not keyfiles.check_signed(brought, (authority.folder / ca.CERTIFICATE).read_bytes()):
            raise InputError(
                f"{path} is not signed by the authority of {home}; add the certificate that signed it to that authority"
            )
        try:
            whose = member_of(brought, plan)
        except Refused as error:
            raise InputError(f"{path} cannot be used: {error}; the plan wants {plan.certificates[name]}") from None
        if whose != name:
            raise InputError(f"{path} is the certificate of {whose!r}, not of {name!r}")
        problem = check_purposes(brought)
        if problem:
            raise InputError(f"{path} {problem}; members call and are called, so ask for clientAuth and serverAuth")
        authority.keep(name, brought)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    refresh(home, plan, folder)
    if brought is not None:
        atomic_write(folder / ca.CERTIFICATE, ca.pem(brought))
    return brought


def refresh(home: Path, plan: Federation, folder: Path) -> None:
    """Put the newest plan and list of revoked certificates into a kit, and whose signatures count."""
    source = home / "authority"
    signed.save(home, plan, folder / PLAN)
    copied = {ca.REVOKED: ca.REVOKED, ca.CERTIFICATE: "ca.pem", signers.PUBLIC: signers.PUBLIC}
    for file, name in copied.items():
        if (source / file).is_file():
            atomic_write(folder / name, (source / file).read_bytes())


def _host(plan: Federation, name: str) -> str:
    if name == SERVER:
        return host_of(plan.server_address)
    if name in plan.helpers:
        return next(host_of(relay.address) for relay in plan.relays or () if relay.name == name)
    last = next(epoch for epoch in reversed(plan.epochs) if name in epoch.names)
    return host_of(last.member(name).address or "")


def _missing(folder: Path, file: str) -> str:
    brought = (folder / signers.PUBLIC).is_file() and file in (ca.KEY, ca.CERTIFICATE)
    return "put yours there, of your authority" if brought else "ask the coordinator for a whole one"
