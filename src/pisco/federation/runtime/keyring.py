"""Members' keys for masks: made where they are used, signed by the member's certificate, told through the server.

An agent makes an X25519 key in its state folder at its first start; it never leaves it. What others are told is the
public part, signed with the key of the member's certificate over the founding plan's hash and the member's name. Each
member checks what it hears against the authority, the plan and the list of revoked certificates, and keeps the first
key that it saw of everybody. The server can hold keys back, but not put others in their place.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from pisco.errors import InputError
from pisco.federation.kits import Kit, Refused
from pisco.federation.plan import Federation
from pisco.federation.rolls import BadRoll, check_signature, sign
from pisco.federation.roster import SERVER
from pisco.federation.runtime import transport
from pisco.federation.runtime.keys_pb2 import MaskKey, MaskKeys
from pisco.federation.runtime.masks import pair_key
from pisco.federation.runtime.peers import Dropped, Patience, Stopped, stop_if_refused
from pisco.federation.runtime.transport import grpc
from pisco.files import atomic_write, read_json

if TYPE_CHECKING:
    from pisco.federation.runtime.agent import Agent
    from pisco.federation.runtime.server import Server

log = logging.getLogger("pisco.federation")

PRIVATE, SEEN = "mask.key", "mask-keys.json"


class BadKey(ValueError):
    """A key for masks that cannot be the member's; the sentence says why."""


def founding(plan: Federation) -> bytes:
    """The hash of the founding plan, which all keys are bound to: changes of the roster leave it as it is."""
    return bytes.fromhex(plan.hash_at(0))


def statement(plan: Federation, name: str, public: bytes) -> bytes:
    """What a member signs."""
    return b"pisco mask key 1\0" + founding(plan) + name.encode() + b"\0" + public


def sign_key(kit: Kit, public: bytes) -> MaskKey:
    """A member's own key, as others are told of it."""
    signature = sign(kit, statement(kit.federation, kit.name, public))
    return MaskKey(certificate=kit.certificate, public=public, signature=signature)


def check_key(kit: Kit, told: MaskKey) -> str:
    """The member whose key this is. `BadKey`: nobody's; `Refused`: its certificate does not hold, now at least."""
    name = kit.identify(told.certificate)
    if name == SERVER:
        raise BadKey("it is signed by the server, which has no key for masks")
    if len(told.public) != 32:
        raise BadKey(f"the key of {name!r} has {len(told.public)} bytes, expected 32")
    try:
        check_signature(told.certificate, statement(kit.federation, name, told.public), told.signature)
    except BadRoll:
        raise BadKey(f"{name!r} has not signed it for this federation") from None
    return name


def own_key(path: Path) -> X25519PrivateKey:
    """The key in a file of mode 600, made at the first call, and whole from then on."""
    if not path.exists():
        atomic_write(path, X25519PrivateKey.generate().private_bytes_raw(), private=True)
    secret = path.read_bytes()
    if len(secret) != 32:
        raise InputError(f"{path} is damaged; bring it back from a copy, since the others know its key")
    return X25519PrivateKey.from_private_bytes(secret)


class Seen:
    """The first key that was seen of everybody, on disk: a later one is refused."""

    def __init__(self, path: Path):
        self.path = path
        fix = "bring it back from a copy: it says which keys for masks the others have"
        self.keys: dict[str, str] = read_json(path, fix) if path.exists() else {}

    def take(self, found: Mapping[str, bytes]) -> None:
        """Keep keys by name; `BadKey` when somebody had another before."""
        for name, public in found.items():
            if self.keys.get(name, public.hex()) != public.hex():
                raise BadKey(
                    f"{name!r} had the key {self.keys[name][:16]} before and now has {public.hex()[:16]}; bring back "
                    "its state folder, or let everybody start over with empty ones"
                )
        new = {name: public.hex() for name, public in found.items() if name not in self.keys}
        if new:
            atomic_write(self.path, json.dumps(self.keys | new, indent=1).encode())
            self.keys |= new


class Keyring:
    """An agent's own key, and those of the others as it hears of them."""

    def __init__(self, agent: Agent):
        self.agent, self.kit = agent, agent.kit
        self.private = own_key(agent.store.folder / PRIVATE)
        self.public = self.private.public_key().public_bytes_raw()
        self.seen = Seen(agent.store.folder / SEEN)
        self._told: dict[str, MaskKey] = {}
        self._pairs: dict[bytes, bytes] = {}

    def introduce(self) -> None:
        """Tell the server our key."""
        log.info("our key for masks is %s", self.public.hex()[:32])
        self._wait_for((), lambda: True)

    def pairs(self, names: Sequence[str], wanted: Callable[[], bool]) -> dict[str, bytes]:
        """The keys that we share with others. Waits until they have told theirs; `Dropped` once not `wanted`."""
        if any(map(self._why_not, names)):
            self._wait_for(names, wanted)
        return {name: self._pair(name) for name in names}

    def _pair(self, name: str) -> bytes:
        other = self._told[name].public
        if other not in self._pairs:
            try:
                made = pair_key(self.private, other, founding(self.kit.federation), (self.agent.name, name))
            except ValueError:  # a point of small order: the secret would be known to all
                raise Stopped(f"the key for masks of {name} cannot be used; tell {name}'s operator") from None
            self._pairs[other] = made
        return self._pairs[other]

    def _why_not(self, name: str) -> str | None:
        """Why a member's key cannot be used now: certificates end, and are revoked, while we run."""
        told = self._told.get(name)
        if told is None:
            return "it has not told its key for masks yet"
        try:
            self.kit.identify(told.certificate)
        except Refused as error:
            return str(error)
        return None

    def _wait_for(self, names: Sequence[str], wanted: Callable[[], bool]) -> None:
        agent, own = self.agent, sign_key(self.kit, self.public)
        patience = Patience(agent.plan.patience, agent.mailroom.stopping)
        while True:
            missing, why = SERVER, f"no answer from {agent.plan.server_address}"
            try:
                self._take(agent.peer(SERVER, agent.done).keys(own, 10.0))
                late = {name: reason for name in names if (reason := self._why_not(name))}
                if not late:
                    return
                missing, why = next(iter(late.items()))
            except grpc.RpcError as error:
                stop_if_refused(error)
            except (OSError, Refused, ValueError) as error:
                if isinstance(error, BadKey):
                    raise Stopped(f"the server gives a key for masks that is refused: {error}") from None
            agent.mailroom.asking = missing
            remedy = "the state is kept, type the command again once it is back"
            patience.wait(f"the key for masks of {missing}: {why}", remedy)
            if not wanted():
                raise Dropped

    def _take(self, heard: MaskKeys) -> None:
        found: dict[str, MaskKey] = {}
        for told in heard.keys:
            try:
                found[check_key(self.kit, told)] = told
            except Refused:
                continue  # it may be renewed while we wait for it
        new = {name: told.public for name, told in found.items() if name not in self.seen.keys}
        self.seen.take({name: told.public for name, told in found.items()})
        self._told |= found
        for name in sorted(new.keys() - {self.agent.name}):
            log.info("the key for masks of %s is %s", name, new[name].hex()[:32])


class KeyBoard:
    """The server's board of all members' keys, on disk: whoever tells its own hears all."""

    FILE = "mask-board.json"

    def __init__(self, server: Server, folder: Path):
        self.server, self.path, self._lock = server, folder / self.FILE, threading.Lock()
        fix = "bring it back from a copy, or move it away: members tell their keys for masks again"
        kept = read_json(self.path, fix) if self.path.exists() else {}
        self._keys = {name: MaskKey(**{k: bytes.fromhex(v) for k, v in each.items()}) for name, each in kept.items()}

    def answer(self, name: str, told: MaskKey, context: Any) -> MaskKeys:
        """A member tells its key."""
        refuse, server = self.server.door.refuse, self.server
        server.look_for_plan()
        if name not in server.plan.names:
            refuse(context, name, "it is not in the roster")
        try:
            signer = check_key(server.kit, told)
        except (BadKey, Refused) as error:
            refuse(context, name, f"its key for masks cannot be used: {error}")
        if signer != name:
            refuse(context, name, f"it sends a key for masks of {signer!r}")
        with self._lock:
            known = self._keys.get(name)
            if known is not None and known.public != told.public:
                lost = "it sent another key for masks before; bring back its state folder"
                refuse(context, name, lost, grpc.StatusCode.FAILED_PRECONDITION)
            if known is None or known.certificate != told.certificate:
                kept = self._keys | {name: told}
                atomic_write(self.path, json.dumps({n: _written(key) for n, key in kept.items()}).encode())
                self._keys = kept  # not before: what a full disk refused is told again
            return MaskKeys(keys=self._keys.values())

    def methods(self) -> dict[str, Any]:
        """What members may ask for."""
        return {transport.KEYS: (self.answer, MaskKey)}


def _written(key: MaskKey) -> dict[str, str]:
    return {field.name: getattr(key, field.name).hex() for field in key.DESCRIPTOR.fields}
