"""A Flower deployment on loopback as real processes: TLS, node authentication, three nodes."""

import contextlib
import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BIN = Path(sys.executable).parent
APP = Path(__file__).with_name("app")
QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}
POLICY = """
epsilon_per_bit = 1.0
epsilon_per_message = inf
budget = {budget}
delta = 0.0
l2_clip = inf
mechanisms = ["CPA"]
ledger = "ledger.db"
"""


class Deployment:
    """A SuperLink and its SuperNodes; every process that was started is stopped at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.started: list[subprocess.Popen[bytes]] = []
        self.began: dict[str, int] = {}
        # The SuperLink starts programs of its own environment by name.
        path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
        self.env = {**os.environ, **QUIET, "FLWR_HOME": str(folder / "home"), "PATH": path}
        (folder / "home").mkdir()
        make_certificates(folder)
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "tls"\n\n[superlink.tls]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{folder / "ca.crt"}"\n'
        )

    def program(self, name: str, log: str, *arguments: Any) -> subprocess.Popen[bytes]:
        """Start a program whose output goes to a log file."""
        command = [BIN / name, *map(str, arguments)]
        with (self.folder / f"{log}.log").open("ab") as file:
            process = subprocess.Popen(
                command, env=self.env, stdout=file, stderr=subprocess.STDOUT, cwd=self.folder
            )
        self.started.append(process)
        return process

    def superlink(self) -> subprocess.Popen[bytes]:
        """Start (again) the SuperLink, with its state on disk."""
        place = self.folder
        process = self.program(
            "flower-superlink",
            "superlink",
            "--ssl-ca-certfile",
            place / "ca.crt",
            "--ssl-certfile",
            place / "server.crt",
            "--ssl-keyfile",
            place / "server.key",
            "--enable-supernode-auth",
            "--database",
            place / "state.db",
            "--host",
            "127.0.0.1",
            "--port",
            self.port,
        )
        until(lambda: listening(self.port), 60, "the SuperLink does not listen")
        return process

    def register(self, name: str) -> None:
        """Register the public key of a node at the SuperLink."""
        done = self.flwr("supernode", "register", self.folder / f"{name}.pub", "tls")
        assert done.returncode == 0, done.stdout

    def node(
        self, name: str, number: int, budget: float = 1e9, register: bool = True
    ) -> subprocess.Popen[bytes]:
        """Start a SuperNode with a key and a policy of its own."""
        make_node_key(self.folder / name)
        if register:
            self.register(name)
        own = self.folder / f"{name}-home"
        own.mkdir()
        (own / "policy.toml").write_text(POLICY.format(budget=budget))
        return self.supernode(name, number)

    def supernode(self, name: str, number: int) -> subprocess.Popen[bytes]:
        """Start the process of a SuperNode that has its key and policy."""
        policy = self.folder / f"{name}-home" / "policy.toml"
        self.began[name] = len(self.log(name))
        return self.program(
            "flower-supernode",
            name,
            "--root-certificates",
            self.folder / "ca.crt",
            "--superlink",
            f"127.0.0.1:{self.port}",
            "--host",
            "127.0.0.1",
            "--port",
            free_port(),
            "--auth-supernode-private-key",
            self.folder / name,
            "--node-config",
            f'partition-id={number} num-partitions=3 hushbit-policy="{policy}"',
        )

    def online(self, name: str) -> bool:
        """Whether the SuperLink has accepted a started node."""
        return "SuperNode ID" in self.log(name)[self.began[name] :]

    def revive(self, name: str, number: int) -> subprocess.Popen[bytes]:
        """Restart a killed node; the SuperLink accepts it once the old one has timed out."""
        end = time.monotonic() + 180
        while time.monotonic() < end:
            process = self.supernode(name, number)
            until(lambda p=process: self.online(name) or p.poll() is not None, 60, f"{name} hangs")
            if self.online(name):
                return process
            time.sleep(5)
        raise AssertionError(f"{name} was not accepted again")

    def flwr(self, *arguments: Any) -> subprocess.CompletedProcess[str]:
        """A command of the flwr tool."""
        command = [BIN / "flwr", *map(str, arguments)]
        return subprocess.run(
            command,
            env=self.env,
            cwd=self.folder,
            timeout=120,
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, folder: Path, rounds: int, deadline: float, dim: int = 1000) -> str:
        """Start a run of the app in the background."""
        folder.mkdir(exist_ok=True)
        config = f'rounds={rounds} folder="{folder}" deadline={deadline} dim={dim}'
        done = self.flwr("run", APP, "tls", "--run-config", config)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def server_app(self) -> int:
        """The process id of the running server app."""
        found: list[int] = []

        def is_running() -> bool:
            alive = [process.pid for process in self.started if process.poll() is None]
            family = [child for parent in alive for child in descendants(parent)]
            found[:] = [one for one in family if "flwr-serverapp" in command_of(one)]
            return bool(found)

        until(is_running, 60, "there is no server app")
        return found[0]

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process and its descendants."""
        for member in [process.pid, *descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        process.wait(20)

    def stop(self) -> None:
        """Stop all started processes, and helper processes that outlived their parent."""
        for process in reversed(self.started):
            if process.poll() is None:
                self.kill(process)
        mine = f"FLWR_HOME={self.folder}".encode()
        for place in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mine in place.read_bytes():
                    os.kill(int(place.parent.name), signal.SIGKILL)

    def log(self, name: str) -> str:
        """The log of a program."""
        place = self.folder / f"{name}.log"
        return place.read_text(errors="replace") if place.exists() else ""


def descendants(parent: int) -> list[int]:
    """Process ids of children and their children, read from Linux's /proc."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            above = int(place.read_text().rpartition(")")[2].split()[1])
            children.setdefault(above, []).append(int(place.parent.name))
    found, rest = [], [parent]
    while rest:
        below = children.get(rest.pop(), [])
        found += below
        rest += below
    return found


def command_of(process: int) -> str:
    """The command line of a process, empty if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    return ""


def rows(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run."""
    place = folder / "run" / "metrics.jsonl"
    lines = place.read_text().splitlines() if place.exists() else []
    return [json.loads(line) for line in lines]


def until(true: Callable[[], bool], seconds: float, complaint: str) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, complaint
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def make_node_key(place: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.OpenSSH
    place.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    place.chmod(0o600)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    place.with_suffix(".pub").write_bytes(public + b"\n")


def make_certificates(folder: Path) -> None:
    """A certificate authority and a server certificate for 127.0.0.1."""
    today = datetime.datetime.now(datetime.UTC)
    span = (today - datetime.timedelta(days=1), today + datetime.timedelta(days=2))
    authority = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])

    def certificate(subject: x509.Name, key: Any, ca: bool) -> bytes:
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(span[0])
            .not_valid_after(span[1])
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
                critical=False,
            )
        )
        if ca:
            usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
            made = made.add_extension(usage, critical=True)
        else:
            here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            names = x509.SubjectAlternativeName([here, x509.DNSName("localhost")])
            made = made.add_extension(names, critical=False)
        return made.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    server = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    (folder / "ca.crt").write_bytes(certificate(name, authority, True))
    (folder / "server.crt").write_bytes(certificate(subject, server, False))
    (folder / "server.key").write_bytes(
        server.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
