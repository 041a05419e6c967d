"""Spark SQL in its own process, one for all tests: one session, any number of catalogs."""

import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from icestream.config import PipelineSettings, Settings
from icestream.model.errors import IcestreamError
from icestream.pipeline.maintenance.session import SparkSql
from icestream.pipeline.spark.jars import JARS, ensure_jars
from icestream.table import spark_catalog_options

_STATIC = "spark.sql.extensions"
_LIMIT_SECONDS = 180.0


class SparkProcess:
    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        jars = ",".join(str(path) for path in ensure_jars(JARS))  # for any catalog that comes
        settings = Settings(data_dir=folder, pipeline=PipelineSettings(master="local[2]", spark={"spark.jars": jars}))
        self._connection, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, settings), name="spark-sql")
        self._lock = threading.Lock()
        self._process.start()
        there.close()

    def sql(self, settings: Settings) -> SparkSql:
        """Return the SQL session of maintenance for the catalog of these settings; its name must be unique."""
        return _Remote(settings, self)

    def ask(self, options: dict[str, str], statement: str, place: str) -> list[dict[str, Any]]:
        with self._lock:
            self._connection.send((options, statement, place))
            assert self._connection.poll(_LIMIT_SECONDS), "Spark does not answer"
            answer = self._connection.recv()
        if isinstance(answer, IcestreamError):
            raise answer
        rows: list[dict[str, Any]] = answer
        return rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._process.join(60)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


class _Remote(SparkSql):
    def __init__(self, settings: Settings, process: SparkProcess) -> None:
        super().__init__(settings)
        self._process = process
        self._options = {name: value for name, value in spark_catalog_options(settings).items() if name != _STATIC}

    def rows(self, statement: str, *, place: str = "") -> list[dict[str, Any]]:
        return self._process.ask(self._options, statement, place)


def _serve(connection: Connection, settings: Settings) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):  # Glue's client asks for some; a test server for none
        os.environ.setdefault(name, "testing")
    spark = SparkSql(settings)
    try:
        while True:
            options, statement, place = connection.recv()
            for name, value in options.items():
                spark.session.conf.set(name, value)
            try:
                connection.send(spark.rows(statement, place=place))
            except IcestreamError as error:
                connection.send(error)
    except EOFError:
        spark.close()
