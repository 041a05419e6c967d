"""Which servers this machine has, and how to install the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from icestream.model.errors import IcestreamError
from icestream.pipeline.spark.cache import NotInstalledError, Report, silent
from icestream.pipeline.spark.jars import JARS, Jar, ensure_jars, obtain_jars
from icestream.pipeline.spark.java import java_home, spark_home
from icestream_servers import azurite, moto
from icestream_servers.etcd import PACKAGE, find_etcd, obtain_etcd
from icestream_servers.gcs import FAKE_GCS
from icestream_servers.postgres import find_postgres, obtain_postgres
from icestream_servers.rest_jars import REST_SERVER_JARS, download
from icestream_servers.s3 import VERSITYGW


@dataclass(frozen=True)
class Server:
    """`missing` returns what the machine lacks, without using the network. `obtain` installs it or raises."""

    missing: Callable[[], str | None]
    obtain: Callable[[Report], None]


def missing(name: str) -> str | None:
    """Return why a server of `SERVERS` cannot run here, or None if it can."""
    return SERVERS[name].missing()


def obtain(name: str, report: Report = silent) -> None:
    """Install what a server of `SERVERS` needs into the cache folder."""
    SERVERS[name].obtain(report)


def _missing_java() -> str | None:
    try:
        spark_home(), java_home()
    except IcestreamError as error:
        return str(error)
    return None


def _missing_jars(jars: tuple[Jar, ...]) -> str | None:
    lacking = [jar.file_name for jar in jars if not jar.path.exists()]
    return _missing_java() or (f"{len(lacking)} jars were not fetched, {lacking[0]} among them" if lacking else None)


def _missing_moto() -> str | None:
    return None if moto.is_installed() else "moto's server is not installed"


def _missing_s3() -> str | None:
    return None if VERSITYGW.find() else _missing_moto()


def _missing_gcs() -> str | None:
    return None if FAKE_GCS.find() else f"{FAKE_GCS.name} was not built"


def _missing_postgres() -> str | None:
    return None if find_postgres() else "there is no PostgreSQL"


def _missing_etcd() -> str | None:
    return None if find_etcd() else f"there is neither etcd nor the Python package {PACKAGE}"


def _obtain_java(report: Report) -> None:
    report(f"Java is {java_home()}, Spark is {spark_home()}")


def _obtain_moto(report: Report) -> None:
    moto.check_installed()
    report("moto's server is installed, as a Python package")


def _obtain_s3(report: Report) -> None:
    try:
        report(f"versitygw is {VERSITYGW.obtain(report)}")
    except NotInstalledError as error:
        _obtain_moto(report)
        report(f"moto's server is used instead of versitygw: {error}")


def _obtain_gcs(report: Report) -> None:
    report(f"{FAKE_GCS.name} is {FAKE_GCS.obtain(report)}")


def _obtain_azurite(report: Report) -> None:
    report(f"Azurite is {azurite.obtain_azurite(report)}")


def _obtain_postgres(report: Report) -> None:
    report(f"PostgreSQL is in {obtain_postgres(report)}")


def _obtain_etcd(report: Report) -> None:
    report(f"etcd is {obtain_etcd()}")


def _obtain_rest_jars(report: Report) -> None:
    obtain_jars(REST_SERVER_JARS, report, download)


def _obtain_iceberg_jars(report: Report) -> None:
    ensure_jars(JARS, report)


SERVERS: Mapping[str, Server] = {
    "spark": Server(_missing_java, _obtain_java),
    "iceberg-jars": Server(lambda: _missing_jars(tuple(JARS.values())), _obtain_iceberg_jars),
    "rest-catalog": Server(lambda: _missing_jars(REST_SERVER_JARS), _obtain_rest_jars),
    "glue": Server(_missing_moto, _obtain_moto),
    "postgres": Server(_missing_postgres, _obtain_postgres),
    "etcd": Server(_missing_etcd, _obtain_etcd),
    "s3": Server(_missing_s3, _obtain_s3),
    "gcs": Server(_missing_gcs, _obtain_gcs),
    "azurite": Server(azurite.missing_azurite, _obtain_azurite),
}
