"""Certificates of an authority that members already had: made with openssl, as an office would; and the plan key."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pisco.cli.main import app
from pisco.errors import InputError
from pisco.federation import audit, kits, rolls, signed, signers
from pisco.federation.authority import Authority, read_certificate
from pisco.federation.kits import Kit, Refused
from pisco.federation.naming import number
from pisco.federation.runtime.server import Server

from federations import Running, plan_for, quadratic_of

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the authority, and is not here")

NAMES = ("server", "agent-0", "agent-1", "agent-2")
BOTH = "extendedKeyUsage=clientAuth,serverAuth"


def openssl(*words, **options):
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, **options)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


class Office:
    """An authority with a root of RSA and one between it and members, as companies have them."""

    def __init__(self, folder):
        self.folder = folder
        self.key("root", rsa=True)
        lasting = ("-subj", "/CN=Office Root", "-days", 30, "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        openssl("req", "-x509", "-new", "-key", folder / "root.key", "-out", folder / "root.pem", *lasting)
        self.key("between")
        self.sign("between", "root", "basicConstraints=critical,CA:TRUE,pathlen:0", "keyUsage=critical,keyCertSign")
        self.bundle = folder / "ca.pem"
        self.bundle.write_bytes((folder / "root.pem").read_bytes() + (folder / "between.pem").read_bytes())

    def key(self, name, *, rsa=False):
        kind = ("genrsa", "-out") if rsa else ("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out")
        openssl(*kind, self.folder / f"{name}.key")
        (self.folder / f"{name}.key").chmod(0o600)

    def sign(self, name, issuer, *extensions, serial=7):
        at = {end: self.folder / f"{name}.{end}" for end in ("key", "csr", "ext", "pem")}
        openssl("req", "-new", "-key", at["key"], "-subj", f"/CN={name}", "-out", at["csr"])
        at["ext"].write_text("\n".join(extensions))
        by = ("-CA", self.folder / f"{issuer}.pem", "-CAkey", self.folder / f"{issuer}.key", "-set_serial", serial)
        openssl("x509", "-req", "-in", at["csr"], *by, "-days", 20, "-extfile", at["ext"], "-out", at["pem"])
        return at["pem"]

    def member(self, name, *dns, rsa=False, purposes=BOTH, new_key=True):
        """A certificate and its key; all have one serial number, as careless authorities do."""
        if new_key:
            self.key(name, rsa=rsa)
        names = ",".join(f"DNS:{each}" for each in dns)
        return self.sign(name, "between", purposes, *([f"subjectAltName={names}"] if dns else []))


def dns(name):
    return f"{name}.office.example"


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    made = Office(tmp_path_factory.mktemp("office"))
    for name in NAMES:
        made.member(name, f"www.{dns(name)}", dns(name).upper())
    return made


def house(office, home, plan):
    """A coordinator's folder, and a kit for everybody with the key and certificate that they had."""
    signers.separate(home / "authority")
    Authority.adopt(home / "authority", plan.name, office.bundle)
    found = {}
    for name in (*plan.helpers, *plan.names):
        folder = home / "kits" / name
        kits.issue(home, plan, name, folder, certificate=office.folder / f"{name}.pem")
        shutil.copy(office.folder / f"{name}.key", folder / "key.pem")
        found[name] = Kit.load(folder)
    return found


def external(**settings):
    return plan_for(3, certificates={name: dns(name) for name in NAMES}, **settings)


@pytest.fixture
def members(office, tmp_path):
    return house(office, tmp_path, external())


@pytest.mark.slow
def test_members_train_with_certificates_that_they_had(office, tmp_path):
    """TLS in both directions, signed rolls, keys for masks, audit logs: all with another authority's certificates."""
    every = {"graph": "complete", "server_prob": 1.0}
    plan = external(rounds=3, network=every, presence="deadline", deadline=60.0, server_sum="masked", name="office")
    own = house(office, tmp_path, plan)
    run = Running(tmp_path, plan, quadratic_of, kits_=own).join()
    assert {name: run.results[name].rounds for name in plan.names} == dict.fromkeys(plan.names, 3)
    bundle = (tmp_path / "authority/cert.pem").read_bytes()
    state = tmp_path / "state/server"
    assert len(rolls.read(state / "rolls.jsonl", plan, bundle)) >= 3
    assert audit.read(state / audit.FILE, bundle, plan)[0].facts["member"] == "server"
    (tmp_path / "state/agent-0" / audit.FILE).replace(state / "other.jsonl")
    renamed = (state / "other.jsonl").read_text().replace('"member": "agent-0"', '"member": "server"')
    (state / "other.jsonl").write_text(renamed)
    with pytest.raises(InputError, match="line 1"):
        audit.read(state / "other.jsonl", bundle, plan)


def test_a_certificate_names_the_one_member_whose_dns_name_it_has(office, members, tmp_path):
    kit = members["server"]
    assert kit.name == "server" and kit.server_name("agent-1") == "agent-1.office.example"
    assert kit.identify(members["agent-1"].certificate) == "agent-1"

    def presented(name, *names, **options):
        return office.member(name, *names, **options).read_bytes()

    for made, words in [
        (presented("printer", "printer.office.example"), "for printer.office.example names no member of the plan"),
        (presented("both", dns("agent-0"), dns("agent-1")), "names 'agent-0' and 'agent-1' at once"),
        (presented("any", "*.office.example"), "no member of the plan"),
        (presented(dns("agent-0")), "no DNS name names no member"),  # the common name does not count
        (presented("rsa", dns("agent-0"), rsa=True), "'agent-0' is not for a key of ECDSA on P-256"),
        ((office.folder / "root.pem").read_bytes(), "no member of the plan"),
    ]:
        with pytest.raises(Refused, match=words):
            kit.identify(made)
    with pytest.raises(Refused, match="signed by another authority"):
        kit.identify(Office(tmp_path).member("agent-1", dns("agent-1")).read_bytes())


def test_who_joins_is_known_by_its_certificate_without_a_restart(office, members, tmp_path):
    """Running members look certificates up in the plan: in the one that they have taken, not in that of their start."""
    office.member("agent-3", dns("agent-3"))
    newcomer = (office.folder / "agent-3.pem").read_bytes()
    kit = members["server"]
    server = Server(kit, tmp_path / "state")
    try:
        with pytest.raises(Refused, match="names no member of the plan"):
            kit.identify(newcomer)
        later = server.plan.change(3, "add", "agent-3", "127.0.0.1:9", certificate=dns("agent-3"))
        signed.save(tmp_path, later, kit.folder / kits.PLAN)
        server.look_for_plan()
        assert kit.identify(newcomer) == "agent-3" and kit.server_name("agent-3") == dns("agent-3")
    finally:
        server.mailroom.close()
        server.store.close()


def test_a_revoked_key_stays_out_whatever_its_authority_signs_for_it(office, members, tmp_path):
    kit, authority = members["server"], Authority.open(tmp_path / "authority", "tests")
    plan = kit.federation
    first = read_certificate(office.folder / "agent-1.pem")
    authority.revoke([number(first, plan)])
    kits.refresh(tmp_path, plan, kit.folder)
    with pytest.raises(Refused, match="'agent-1' has been revoked"):
        kit.identify(members["agent-1"].certificate)
    assert kit.identify(members["agent-2"].certificate) == "agent-2"  # of the same serial number
    shutil.copy(office.folder / "agent-1.key", office.folder / "again.key")
    again = office.member("again", dns("agent-1"), new_key=False).read_bytes()
    with pytest.raises(Refused, match="has been revoked"):
        kit.identify(again)
    assert kit.identify(office.member("newer", dns("agent-1")).read_bytes()) == "agent-1"


def test_the_authority_of_the_certificates_cannot_change_the_plan(office, members, tmp_path):
    folder, plan = members["agent-0"].folder, members["agent-0"].federation
    forged = tmp_path / "forged"
    (forged / "authority").mkdir(parents=True)
    shutil.copy(office.folder / "between.key", forged / "authority/key.pem")
    signed.save(forged, plan.model_copy(update={"seed": 1}), folder / "federation.toml")
    with pytest.raises(InputError, match="is not as the authority signed it"):
        Kit.load(folder)
    signed.save(tmp_path, plan, folder / "federation.toml")
    assert Kit.load(folder).name == "agent-0"
    (folder / "plan.pem").unlink()
    with pytest.raises(InputError, match=r"lacks plan\.pem"):
        Kit.load(folder)


def test_a_command_signs_with_a_key_that_stays_where_it_is(office, tmp_path):
    office.key("token")
    public = tmp_path / "token.pem"
    public.write_bytes(openssl("ec", "-in", office.folder / "token.key", "-pubout"))
    command = f"openssl dgst -sha256 -sign {office.folder / 'token.key'}"
    signers.separate(tmp_path / "authority", command, public)
    authority, plan = Authority.create(tmp_path / "authority", "tests"), plan_for(3)
    made = kits.issue(tmp_path, plan, "agent-0", tmp_path / "kit")
    assert Kit.load(tmp_path / "kit").version == 1 and not (tmp_path / "authority/plan.key").exists()
    authority.revoke([made.serial_number])
    kits.refresh(tmp_path, plan, tmp_path / "kit")
    with pytest.raises(InputError, match="has been revoked"):
        Kit.load(tmp_path / "kit")
    for other, words in [
        (f"openssl dgst -sha256 -sign {office.folder / 'agent-0.key'}", "is not a signature of plan.pem's key"),
        ("false", "'false' cannot sign"),
        ("no-such-program", "cannot sign"),
        ("'", "cannot sign"),
    ]:
        with pytest.raises(InputError, match=words):
            signers.separate(tmp_path / "more", other, public)
    with pytest.raises(InputError, match="go together"):
        signers.separate(tmp_path / "more", command)


def token_tools():
    """A software token's module (PISCO_SOFTHSM, or Debian's), where its tools and openssl's engine are here too."""
    module = os.environ.get("PISCO_SOFTHSM", "/usr/lib/softhsm/libsofthsm2.so")
    tools = all(shutil.which(name) for name in ("softhsm2-util", "pkcs11-tool")) and Path(module).exists()
    if not tools or subprocess.run(["openssl", "engine", "pkcs11"], capture_output=True).returncode:
        pytest.skip("softhsm2, opensc and libengine-pkcs11-openssl are not all here")
    return module


def test_a_key_in_a_token_signs(tmp_path, monkeypatch):
    """A real PKCS#11 token, in software: the key is made in it and never leaves it."""
    module = token_tools()
    (tmp_path / "tokens").mkdir()
    (tmp_path / "softhsm2.conf").write_text(f"directories.tokendir = {tmp_path / 'tokens'}\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(tmp_path / "softhsm2.conf"))
    monkeypatch.setenv("PKCS11_MODULE_PATH", module)
    (tmp_path / "pin").write_text("1234")
    made = ["softhsm2-util", "--module", module, "--init-token", "--free", "--label", "clinic"]
    subprocess.run([*made, "--pin", "1234", "--so-pin", "1234"], check=True, capture_output=True)
    tool = ["pkcs11-tool", "--module", module, "--token-label", "clinic", "--login", "--pin", "1234", "--label", "plan"]
    subprocess.run([*tool, "--keypairgen", "--key-type", "EC:prime256v1"], check=True, capture_output=True)
    der, public = tmp_path / "plan.der", tmp_path / "plan-public.pem"
    subprocess.run([*tool, "--read-object", "--type", "pubkey", "-o", str(der)], check=True, capture_output=True)
    openssl("pkey", "-pubin", "-inform", "der", "-in", der, "-out", public)
    key = f"pkcs11:token=clinic;object=plan;type=private;pin-source={tmp_path / 'pin'}"
    sign = f"openssl dgst -sha256 -engine pkcs11 -keyform engine -sign {key}"
    home = tmp_path / "clinic"
    done = command("init", home, "--agents", 3, "--plan-key", public, "--sign-with", sign)
    assert done.exit_code == 0, done.output
    assert command("issue", "--all", "--dir", home).exit_code == 0
    assert Kit.load(home / "kits" / "agent-0").version == 1
    assert command("revoke", "agent-1", "--dir", home).exit_code == 0
    with pytest.raises(InputError, match="has been revoked"):
        Kit.load(home / "kits" / "agent-1")
    (tmp_path / "pin").write_text("4321")  # without the token's consent nothing is signed
    assert command("revoke", "agent-2", "--dir", home).exit_code != 0
    assert Kit.load(home / "kits" / "agent-2").name == "agent-2"


def command(*words):
    return CliRunner().invoke(app, ["federation", *map(str, words)])


def test_a_morning_with_certificates_of_the_office(office, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = [word for name in NAMES for word in ("--certificate", f"{name}={dns(name)}")]
    made = command("init", "clinic", "--agents", 3, "--authority", office.bundle, *named)
    assert made.exit_code == 0 and "plan.key signs plans and revocations" in made.output
    assert not Path("clinic/authority/key.pem").exists()
    assert "not here" in command("issue", "--all", "--dir", "clinic").output
    with pytest.raises(InputError, match=r"lacks key\.pem; put yours there"):
        Kit.load("clinic/kits/agent-0")
    given = command("issue", "agent-0", "--dir", "clinic", "--certificate", office.folder / "agent-0.pem")
    assert given.exit_code == 0, given.output
    shutil.copy(office.folder / "agent-0.key", "clinic/kits/agent-0/key.pem")
    assert Kit.load("clinic/kits/agent-0").name == "agent-0"
    shown = command("show", "--dir", "clinic").output
    assert "agent-0" in shown and "valid" in shown
    later = ("--address", "127.0.0.1:7999", "--round", 9, "--dir", "clinic")
    assert "has no certificate named" in command("change", "add", "late", *later).output
    assert command("change", "add", "late", *later, "--certificate", "late.office.example").exit_code == 0
    plan = Kit.load("clinic/kits/agent-0").federation
    assert plan.certificates["late"] == "late.office.example" and plan.certificates["server"] == dns("server")
    gone = office.folder / "agent-1.pem"
    assert command("revoke", "agent-1", "--dir", "clinic", "--certificate", gone).exit_code == 0
    with pytest.raises(Refused, match="revoked"):
        Kit.load("clinic/kits/agent-0").identify(gone.read_bytes())
    purposes = office.member("caller", dns("agent-2"), purposes="extendedKeyUsage=clientAuth")
    for words, saying in [
        (("issue", "agent-2", "--dir", "clinic", "--certificate", office.folder / "agent-0.pem"), "of 'agent-0', not"),
        (("issue", "agent-2", "--dir", "clinic", "--certificate", purposes), "is not for serverAuth"),
        (("issue", "agent-2", "--dir", "clinic", "--renew"), "takes --certificate, not --request"),
        (("issue", "agent-2", "--dir", "clinic", "--request", "x.pem"), "takes --certificate, not --request"),
        (("revoke", "agent-2", "--dir", "clinic"), "or give --certificate"),
        (("init", "other", "--authority", office.bundle), "go together"),
        (("init", "other", "--agents", 3, "--authority", office.bundle, *named[:4]), "'agent-1' has no certificate"),
        (("init", "other", "--authority", office.bundle, "--certificate", "ghost=a.b"), "'ghost' has no member"),
        (("init", "other", "--agents", 3, "--authority", office.bundle, *named[:-1], "agent-2=*.b"), "*.b"),
        (("init", "other", "--agents", 3, "--authority", office.folder / "agent-0.pem", *named), "may not sign others"),
    ]:
        said = command(*words)
        assert not Path("other").exists()
        assert said.exit_code == 2 and saying in " ".join(said.output.split()), said.output
