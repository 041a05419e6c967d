"""An S3 store: versitygw over a directory if there is one, else moto's.

Both honour conditional puts. versitygw keeps objects as files and so survives restarts and kills; moto forgets.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow.fs

from icestream_servers.moto import moto_command
from icestream_servers.process import HOST, ServerProcess
from icestream_servers.programs import GoProgram

REGION = "us-east-1"
ACCESS_KEY = "icestream-test"
SECRET_KEY = "icestream-secret"  # of a server that only this machine reaches
VERSITYGW = GoProgram("github.com/versity/versitygw/cmd/versitygw@v1.8.0")


class S3Server(ServerProcess):
    """A store with one bucket. `survives_restart`: objects are kept over a restart."""

    name = "s3"

    def __init__(self, directory: Path, *, bucket: str = "warehouse", port: int | None = None) -> None:
        super().__init__(directory, port=port)
        self.bucket = bucket
        self.survives_restart = False

    def command(self) -> Sequence[str]:
        program = VERSITYGW.find()
        self.survives_restart = program is not None
        if program is None:
            return moto_command(self.port)
        # The metadata has a directory of its own because not every file system keeps extended attributes. Connections
        # are not kept alive: on one that is, PyArrow's uploads now and then end in a 400 (versitygw 1.8.0).
        folders = ["--sidecar", str(self.directory / "metadata"), str(self.directory / "objects")]
        return [str(program), "--quiet", f"--port={HOST}:{self.port}", "posix", *folders]

    def environ(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("VGW_", "ROOT_"))}
        return clean | {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY, "VGW_REGION": REGION}

    def prepare(self) -> None:
        for folder in ("objects", "metadata"):
            (self.directory / folder).mkdir(exist_ok=True)

    def start(self) -> Self:
        super().start()
        self.create_bucket(self.bucket)
        return self

    def file_system(self, endpoint: str | None = None) -> pyarrow.fs.S3FileSystem:
        return pyarrow.fs.S3FileSystem(
            endpoint_override=endpoint or self.url,
            region=REGION,
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            allow_bucket_creation=True,
        )

    def create_bucket(self, name: str) -> None:
        """Create a bucket unless it exists; names have at least three letters."""
        self.file_system().create_dir(name)

    def settings(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return icestream's settings for this store; `endpoint` may be that of a proxy in front of it."""
        store = {
            "type": "s3",
            "bucket": self.bucket,
            "region": REGION,
            "endpoint": endpoint or self.url,
            "path_style": True,
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
        }
        return {"object_store": store}

    def cloud_settings(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return icestream's settings for cloud objects in this store; `endpoint` may be a proxy's."""
        store = {
            "backend": "s3",
            "root": f"s3://{self.bucket}",
            "region": REGION,
            "endpoint": endpoint or self.url,
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
        }
        return {"cloud": store}
