"""fake-gcs-server: Google Cloud Storage in memory, without credentials."""

import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from icestream.model.errors import UnavailableError
from icestream_servers.process import HOST, ServerProcess
from icestream_servers.programs import GoProgram

FAKE_GCS = GoProgram("github.com/fsouza/fake-gcs-server@v1.56.1")


class GcsServer(ServerProcess):
    """A store with one bucket."""

    name = "gcs"

    def __init__(self, directory: Path, *, bucket: str = "warehouse", port: int | None = None) -> None:
        super().__init__(directory, port=port)
        self.bucket = bucket

    def command(self) -> Sequence[str]:
        options = {
            "backend": "memory",
            "scheme": "http",
            "host": HOST,
            "port": self.port,
            "public-host": f"{HOST}:{self.port}",
            "log-level": "error",
        }
        return [str(FAKE_GCS.obtain()), *(f"-{name}={value}" for name, value in options.items())]

    def start(self) -> Self:
        super().start()
        self.create_bucket(self.bucket)
        return self

    def create_bucket(self, name: str) -> None:
        """Create a bucket unless it exists."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=10)
        try:
            body = json.dumps({"name": name})
            connection.request("POST", "/storage/v1/b?project=test", body, {"Content-Type": "application/json"})
            status = connection.getresponse().status
        finally:
            connection.close()
        if status not in {http.HTTPStatus.OK, http.HTTPStatus.CONFLICT}:
            raise UnavailableError(f"it answered {status}", operation="create bucket", place=f"{self.url}/{name}")

    def cloud_settings(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return icestream's settings for cloud objects in this store; `endpoint` may be a proxy's."""
        store = {
            "backend": "gcs",
            "root": f"gcs://{self.bucket}",
            "endpoint": endpoint or self.url,
            "anonymous": True,
        }
        return {"cloud": store}
