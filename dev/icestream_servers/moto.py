"""moto's server: one Python program that answers as several services of Amazon do. It keeps all it knows in memory."""

import importlib.util
import sys

from icestream.pipeline.spark.cache import NotInstalledError
from icestream_servers.process import HOST


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
