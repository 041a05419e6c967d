"""A Spark session with Iceberg's runtime and the tables' catalog. It starts at first use.

Errors of the JVM become `MaintenanceFailedError`, or `CommitConflictError` if the step lost to another commit.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icestream.config import Settings
from icestream.model.errors import CommitConflictError, IcestreamError, UnavailableError
from icestream.model.names import TopicName
from icestream.pipeline.spark.jars import ensure_jars
from icestream.pipeline.spark.java import java_home
from icestream.pipeline.spark.session import LOOPBACK, end_jvm, is_local, properties
from icestream.table import spark_catalog_options

_CONFLICTS = ("CommitFailedException", "ValidationException")
_LOG_OPTION = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
_SHUFFLE_PARTITIONS = "8"


class MaintenanceFailedError(IcestreamError):
    """A procedure of Iceberg that failed for another reason than a conflict."""

    code = "maintenance_failed"


class SparkSql:
    """Runs SQL over the tables of the catalog. One a process."""

    def __init__(self, settings: Settings, report: Callable[[str], None] = lambda _line: None) -> None:
        self._settings = settings
        self._report = report
        self._session: SparkSession | None = None

    @property
    def session(self) -> SparkSession:
        if self._session is None:
            self._session = self._start()
        return self._session

    def rows(self, statement: str, *, place: str = "") -> list[dict[str, Any]]:
        """Run a statement and return its rows."""
        try:
            return [row.asDict() for row in self.session.sql(statement).collect()]
        except (PySparkException, Py4JError) as error:
            text = str(error)
            if any(name in text for name in _CONFLICTS):
                raise CommitConflictError(
                    f"the step lost to another commit: {_reason(text)}", operation="maintain", place=place
                ) from error
            raise MaintenanceFailedError(_reason(text), operation="maintain", place=place) from error

    def table(self, topic: TopicName) -> str:
        """Return the name of a topic's table in SQL."""
        catalog = self._settings.catalog
        # A SQL catalog keeps namespaces as text, and reads each dot as a level.
        levels = topic.namespace.split(".") if catalog.type == "sql" else [topic.namespace]
        return ".".join(f"`{part}`" for part in (catalog.name, *levels, topic.name))

    def call(self, procedure: str, arguments: dict[str, str], *, place: str) -> list[dict[str, Any]]:
        """Call a procedure of Iceberg. The arguments are SQL expressions."""
        given = ", ".join(f"{name} => {value}" for name, value in arguments.items())
        return self.rows(f"CALL `{self._settings.catalog.name}`.system.{procedure}({given})", place=place)

    def close(self) -> None:
        if self._session is None:
            return
        self._session.stop()
        self._session = None
        end_jvm()

    def _start(self) -> SparkSession:
        self._report("starting Spark")
        os.environ["JAVA_HOME"] = str(java_home())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        for name, value in aws_environment(self._settings).items():
            os.environ.setdefault(name, value)
        chosen = session_properties(self._settings, self._report)
        if is_local(chosen["spark.master"]):
            os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        builder = SparkSession.builder
        for name, value in chosen.items():
            builder = builder.config(name, value)
        try:
            return builder.getOrCreate()
        except (PySparkException, Py4JError, OSError) as error:
            raise UnavailableError(
                f"Spark did not start: {_reason(str(error))}", operation="maintain", place=chosen["spark.master"]
            ) from error


def session_properties(settings: Settings, report: Callable[[str], None] = lambda _line: None) -> dict[str, str]:
    """The pipeline's properties, changed for SQL on Iceberg's tables."""
    maintenance = settings.maintenance
    base = settings.model_copy(
        update={
            "pipeline": settings.pipeline.model_copy(
                update={
                    "master": maintenance.master or settings.pipeline.master,
                    "driver_memory_mb": maintenance.driver_memory_mb,
                }
            )
        }
    )
    jars = [str(path) for path in ensure_jars(jar_names(settings), report)]
    found = properties(base) | spark_catalog_options(settings)
    found |= {
        "spark.app.name": "icestream maintenance",
        # On the JVM's class path they would make its class archive invalid.
        "spark.jars": ",".join(jars),
        "spark.driver.extraJavaOptions": f"{found['spark.driver.extraJavaOptions']} {_LOG_OPTION}",
        "spark.sql.shuffle.partitions": _SHUFFLE_PARTITIONS,
        "spark.sql.session.timeZone": "UTC",
    }
    return found | settings.pipeline.spark


def aws_environment(settings: Settings) -> dict[str, str]:
    """Return the store's keys as environment variables. Glue's Java client reads only these, unlike that of S3."""
    store = settings.object_store
    if settings.catalog.type != "glue" or store.access_key is None or store.secret_key is None:
        return {}
    found = {
        "AWS_ACCESS_KEY_ID": store.access_key.get_secret_value(),
        "AWS_SECRET_ACCESS_KEY": store.secret_key.get_secret_value(),
    }
    if store.session_token is not None:
        found["AWS_SESSION_TOKEN"] = store.session_token.get_secret_value()
    return found


def jar_names(settings: Settings) -> list[str]:
    """Return the names of the jars that this catalog and this store need."""
    names = ["iceberg-spark-runtime"]
    if settings.catalog.type == "glue" or settings.object_store.type == "s3":
        names.append("iceberg-aws-bundle")
    if settings.catalog.type == "sql":
        names.append("sqlite-jdbc" if str(settings.catalog.uri).startswith("sqlite") else "postgresql")
    return names


def text(value: str) -> str:
    """Return a SQL string literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def options(values: dict[str, str | int]) -> str:
    """Return a SQL map of strings."""
    return f"map({', '.join(f'{text(name)}, {text(str(value))}' for name, value in values.items())})"


def _reason(said: str) -> str:
    """Return the first line that names an error. Java repeats it with every stack trace."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = next((line for line in lines if "Exception:" in line or "Error:" in line), lines[0] if lines else "")
    return telling[:500] or "Spark did not say why"
