"""A Glue catalog, as moto answers for it. What is in it is lost when it stops."""

from collections.abc import Sequence
from typing import Any

from icestream_servers.moto import moto_command
from icestream_servers.process import ServerProcess

REGION = "us-east-1"


class GlueServer(ServerProcess):
    name = "glue"

    def command(self) -> Sequence[str]:
        return moto_command(self.port)

    def settings(self, endpoint: str | None = None) -> dict[str, Any]:
        """Settings of icestream for this catalog; `endpoint` is that of a proxy before it."""
        properties = {
            "glue.endpoint": endpoint or self.url,
            "glue.region": REGION,
            "glue.access-key-id": "glue-test",
            "glue.secret-access-key": "glue-test",
        }
        return {"catalog": {"type": "glue", "properties": properties}}
