"""Azurite, Microsoft's emulator of Azure blob storage: a program for Node, installed once with npm.

It checks signatures, and keeps all in memory.
"""

import base64
import functools
import hashlib
import hmac
import http.client
import subprocess
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any, Self

from icestream.model.errors import UnavailableError
from icestream.pipeline.spark.cache import NotInstalledError, Report, cache_dir, obtain, silent
from icestream_servers.process import HOST, ServerProcess
from icestream_servers.programs import find_node, obtain_node

VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"
# The key that Azurite's documentation gives for this account.
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_API_VERSION = "2021-08-06"
_INSTALL_SECONDS = 1800


def missing_azurite() -> str | None:
    if find_node() is None:
        return "there is no Node to run Azurite with"
    return None if _program(_installed()).exists() else "Azurite was not installed"


def obtain_azurite(report: Report = silent) -> Path:
    """Install Azurite unless it is there, which takes a minute; return its main file."""
    if not _program(_installed()).exists():
        node = obtain_node(report)
        report("installing Azurite with npm; this takes a minute")
        obtain(_installed(), functools.partial(_install, node.npm))
    return _program(_installed())


class AzuriteServer(ServerProcess):
    """A store with one container."""

    name = "azurite"

    def __init__(self, directory: Path, *, container: str = "warehouse", port: int | None = None) -> None:
        super().__init__(directory, port=port)
        self.container = container

    def command(self) -> Sequence[str]:
        address = ["--blobHost", HOST, "--blobPort", str(self.port), "--disableProductStyleUrl"]
        flags = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        return [obtain_node().program, str(obtain_azurite()), *address, *flags]

    def start(self) -> Self:
        super().start()
        self.create_container(self.container)
        return self

    def create_container(self, name: str) -> None:
        """Create a container unless it exists."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _API_VERSION}
        signed = "\n".join(f"{header}:{value}" for header, value in headers.items())
        text = "PUT" + "\n" * 12 + f"{signed}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        connection = http.client.HTTPConnection(HOST, self.port, timeout=10)
        try:
            connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
            status = connection.getresponse().status
        finally:
            connection.close()
        if status not in {http.HTTPStatus.CREATED, http.HTTPStatus.CONFLICT}:
            raise UnavailableError(f"it answered {status}", operation="create container", place=f"{self.url}/{name}")

    def cloud_settings(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return icestream's settings for cloud objects in this store; `endpoint` may be a proxy's."""
        store = {
            "backend": "azblob",
            "root": self.container,
            "endpoint": f"{endpoint or self.url}/{ACCOUNT}",
            "account_name": ACCOUNT,
            "account_key": ACCOUNT_KEY,
        }
        return {"cloud": store}


def _installed() -> Path:
    return cache_dir() / f"azurite-{VERSION}"


def _program(folder: Path) -> Path:
    return folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def _install(npm: tuple[str, ...], target: Path) -> None:
    target.mkdir()
    command = [
        *npm,
        "install",
        f"--prefix={target}",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        f"azurite@{VERSION}",
    ]
    done = subprocess.run(command, cwd=target, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NotInstalledError(f"npm install failed: {said}", operation="install Azurite")
