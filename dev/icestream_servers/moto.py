"""moto's server: a Python program that implements Amazon services, Glue among them, in memory."""

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

from icestream.pipeline.spark.cache import NotInstalledError
from icestream_servers.process import HOST, ServerProcess

REGION = "us-east-1"


def is_installed() -> bool:
    return all(importlib.util.find_spec(module) for module in ("moto", "flask", "flask_cors"))


def check_installed() -> None:
    if not is_installed():
        raise NotInstalledError(
            "moto's server is not installed",
            operation="start moto",
            remedy="pip install 'moto[glue,s3]' flask flask-cors",
        )


def moto_command(port: int) -> list[str]:
    check_installed()
    return [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]


class GlueServer(ServerProcess):
    """A Glue catalog. Its contents are lost when it stops."""

    name = "glue"

    def command(self) -> Sequence[str]:
        return moto_command(self.port)

    def settings(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return icestream's settings for this catalog; `endpoint` may be that of a proxy in front of it."""
        properties = {
            "glue.endpoint": endpoint or self.url,
            "glue.region": REGION,
            "glue.access-key-id": "glue-test",
            "glue.secret-access-key": "glue-test",
        }
        return {"catalog": {"type": "glue", "properties": properties}}
