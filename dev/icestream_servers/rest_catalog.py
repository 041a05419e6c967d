"""Iceberg's own REST catalog, as its tests run it: a servlet around a JDBC catalog on a SQLite file.

It is put together by a Jetty XML file rather than by Iceberg's `RESTCatalogServer`, which listens on all interfaces;
this one listens on 127.0.0.1 alone. It survives restarts and kills.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from icestream.pipeline.spark.cache import NotInstalledError
from icestream.pipeline.spark.java import java_home, spark_home
from icestream_servers.process import HOST, ServerProcess
from icestream_servers.rest_jars import REST_SERVER_JARS
from icestream_servers.s3 import S3Server

_SERVER_XML = """\
<?xml version="1.0"?>
<Configure class="org.eclipse.jetty.server.Server">
  <Arg><New class="java.net.InetSocketAddress"><Arg>{host}</Arg><Arg type="int">{port}</Arg></New></Arg>
  <Set name="handler"><New class="org.eclipse.jetty.ee10.servlet.ServletContextHandler">
    <Call name="addServlet">
      <Arg><New class="org.eclipse.jetty.ee10.servlet.ServletHolder"><Arg>
        <New class="org.apache.iceberg.rest.RESTCatalogServlet"><Arg>
          <New class="org.apache.iceberg.rest.RESTCatalogAdapter"><Arg>
            <Call class="org.apache.iceberg.CatalogUtil" name="buildIcebergCatalog">
              <Arg>rest_backend</Arg>
              <Arg><Map>{properties}</Map></Arg>
              <Arg><New class="org.apache.hadoop.conf.Configuration"/></Arg>
            </Call>
          </Arg></New>
        </Arg></New>
      </Arg></New></Arg>
      <Arg>/*</Arg>
    </Call>
  </New></Set>
</Configure>
"""


class RestCatalogServer(ServerProcess):
    """A catalog whose tables are in `warehouse`: an S3 server's bucket, or a directory."""

    name = "rest-catalog"

    def __init__(self, directory: Path, *, warehouse: S3Server | Path, port: int | None = None) -> None:
        super().__init__(directory, port=port)
        self._warehouse = warehouse

    def command(self) -> Sequence[str]:
        missing = [jar.path.name for jar in REST_SERVER_JARS if not jar.path.exists()]
        if missing:
            raise NotInstalledError(
                f"jars are missing: {', '.join(missing)}",
                operation="start REST catalog",
                remedy="fetch them with `make servers`",
            )
        classes = [str(jar.path) for jar in REST_SERVER_JARS] + [str(spark_home() / "jars" / "*")]
        return [
            str(java_home() / "bin" / "java"),
            *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"),
            "-Dorg.eclipse.jetty.xml.XmlParser.Validating=false",
            *("-classpath", ":".join(classes), "org.eclipse.jetty.xml.XmlConfiguration"),
            str(self._configuration_file),
        ]

    def environ(self) -> dict[str, str]:
        """Leave out the caller's own Amazon configuration."""
        return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}

    def prepare(self) -> None:
        entries = "".join(
            f"<Entry><Item>{escape(name)}</Item><Item>{escape(value)}</Item></Entry>"
            for name, value in self._properties().items()
        )
        self._configuration_file.write_text(_SERVER_XML.format(host=HOST, port=self.port, properties=entries))

    def is_ready(self) -> bool:
        return self.get("/v1/config") is not None

    def settings(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return icestream's settings for this catalog; `endpoint` may be that of a proxy in front of it."""
        return {"catalog": {"type": "rest", "uri": endpoint or self.url}}

    @property
    def _configuration_file(self) -> Path:
        return self.directory / "rest-catalog.xml"

    def _properties(self) -> Mapping[str, str]:
        common = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:{self.directory / 'catalog.db'}?busy_timeout=30000",
            "jdbc.schema-version": "V1",
        }
        if isinstance(self._warehouse, Path):
            return common | {"warehouse": str(self._warehouse)}
        store = self._warehouse.settings()["object_store"]
        return common | {
            "warehouse": f"s3://{store['bucket']}/rest",
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": store["endpoint"],
            "s3.path-style-access": "true",
            "s3.access-key-id": store["access_key"],
            "s3.secret-access-key": store["secret_key"],
            "client.region": store["region"],
        }
