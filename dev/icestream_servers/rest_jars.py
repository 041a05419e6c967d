"""The jars of Iceberg's REST catalog server that Spark does not include.

They are downloaded one by one: Spark's resolver knows no classifiers, and the server is in a jar that has one.
"""

import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from icestream.model.errors import UnavailableError
from icestream.pipeline.spark.jars import JARS, Jar, repositories
from icestream.pipeline.spark.java import spark_home

_CENTRAL = "https://repo1.maven.org/maven2"
_SECONDS = 300.0


@dataclass(frozen=True)
class ClassifiedJar(Jar):
    classifier: str = ""

    @property
    def file_name(self) -> str:
        return f"{'-'.join(filter(None, (self.artifact, self.version, self.classifier)))}.jar"


def download(jars: Sequence[Jar], into: Path) -> None:
    """Put each jar under its `file_name` into a folder, from the first repository that has it."""
    for jar in jars:
        folder = f"{jar.group.replace('.', '/')}/{jar.artifact}/{jar.version}"
        failed = []
        for root in _roots():
            url = f"{root.rstrip('/')}/{folder}/{jar.file_name}"
            try:
                with urllib.request.urlopen(url, timeout=_SECONDS) as source, (into / jar.file_name).open("wb") as file:
                    shutil.copyfileobj(source, file)
                break
            except (urllib.error.URLError, OSError) as error:
                failed.append(f"{url}: {error}")
        else:
            raise UnavailableError(f"no repository has {jar.file_name}: {'; '.join(failed)}", operation="download jars")


def _roots() -> list[str]:
    """The machine's repositories: those of Spark's Ivy settings, if it has any, and else the central one last."""
    folder = os.environ.get("SPARK_CONF_DIR")
    defaults = (Path(folder) if folder else spark_home() / "conf") / "spark-defaults.conf"
    if defaults.is_file() and (
        named := re.search(r"(?m)^\s*spark\.jars\.ivySettings[\s=]+(\S+)", defaults.read_text())
    ):
        return re.findall(r'root="([^"]+)"', Path(named[1]).read_text())
    local = Path.home() / ".m2" / "repository"
    return [*([local.as_uri()] if local.is_dir() else []), *(repositories() or [_CENTRAL])]


_ICEBERG = "org.apache.iceberg"
_ICEBERG_VERSION = "1.11.0"  # the newest whose `tests` jar, which holds the server, is published; 1.12.0 clients work
_JETTY = "org.eclipse.jetty"
_JETTY_VERSION = "12.1.13"


def _iceberg(artifact: str, sha256: str, classifier: str = "") -> Jar:
    return ClassifiedJar(_ICEBERG, f"iceberg-{artifact}", _ICEBERG_VERSION, sha256, classifier)


def _jetty(artifact: str, sha256: str, group: str = _JETTY) -> Jar:
    return Jar(group, f"jetty-{artifact}", _JETTY_VERSION, sha256)


REST_SERVER_JARS = (
    _iceberg("core", "53b9eb7a8c34fb9958ea7d9a4d19ba5bc96f592d0f05e8625b0778c70b1f0090"),
    _iceberg("core", "4284719a5f0eb7db01e9f784a0ed4ca8bacf7d6f9951924143afc083428d8be3", classifier="tests"),
    _iceberg("api", "f00675a12ceb6d833bb9c22024823a3e7afdedf7abcefe34719f45b0d211995a"),
    _iceberg("common", "b2835d00db7c92bdfa728123ad7cdcb488e2f2805c1c51fb9ae94e8bd203bd7d"),
    _iceberg("bundled-guava", "396d48d93ef5735f2ddef0cf9b3d6968ebd67b64b5cfe753d41c429d3f46a2a1"),
    _iceberg("aws", "4cfe4a7ba3a4fb247a29e60c614678c3b7a1e9b4b91f54e0ca3406419c9338f0"),
    _iceberg("aws-bundle", "38f01da7e96850cdd05e6616d758b77b43314b712a8808e3f9a824d56976162f"),
    JARS["sqlite-jdbc"],
    Jar(
        "com.github.ben-manes.caffeine",
        "caffeine",
        "2.9.3",
        "1e0a7bbef1dd791653143f3f05d0e489934bf5481e58a87c9e619cd46b68729b",
    ),
    Jar(
        "dev.failsafe",
        "failsafe",
        "3.3.2",
        "2c5dc879a6dac7ea3a7b29d795e27bd49b8e7908b05c2f3e56053c19d79850f5",
    ),
    Jar(
        "org.apache.httpcomponents.client5",
        "httpclient5",
        "5.6.1",
        "1e3d8444c3c27772e4b9d42a790f06b3345a8ece4fd16d00981f2f2460e1e772",
    ),
    Jar(
        "org.apache.httpcomponents.core5",
        "httpcore5-h2",
        "5.4",
        "2e0f4ace15db2d1609c2b06eca6012e7582afe4a99ad8d15073f62dd8edb3460",
    ),
    Jar(
        "org.roaringbitmap",
        "RoaringBitmap",
        "1.6.14",
        "78ae7a6261b5b03f53b8db991047d06959cfadbd0b08af54bd95dda40af9acba",
    ),
    Jar(
        "org.apache.httpcomponents.core5",
        "httpcore5",
        "5.4",
        "cec2981fa7f520efb63f0787c24f10af2679e31f9f75c448c4dde40a3ae8100d",
    ),
    Jar(
        "jakarta.servlet",
        "jakarta.servlet-api",
        "6.0.0",
        "c034eb1afb158987dbb53a5fea0cadf611c8dae8daadd59c44d9d5ab70129cef",
    ),
    _jetty("ee10-servlet", "361374c3bf4cc93d45275ca2e9f74a928e65e537e5f50da645113306a27dbe53", f"{_JETTY}.ee10"),
    _jetty("http", "3bb84bfdd0992453986a8f7422dbf55cf779a0a780ff8a68041bb6119fb997fd"),
    _jetty("io", "946338a5db4e906ba0698dcdae350394736062cf915b5f16ebf787bcee7fffae"),
    _jetty("security", "64b15214158097af40db345a31bb71cfe0d4a6c7c19cb59cd4c0a97245999ee8"),
    _jetty("server", "978265f1ac637c504b537f5d56e07d4a47e7c4bb0752d9dd66b79f5be754abfa"),
    _jetty("session", "30ebd5d63895f97aad0d626a567b40552d4c2bd9978adedc46e7a23b4652f595"),
    _jetty("util", "3e408e60fe71a337979004fc4e47bfd3c08a931cf33b46b6a5dc4dbdd088c2fd"),
    _jetty("xml", "ccf30ddde0326b9691818a3f797a1fc443a0633bf1b04989ed2387b7574f1e01"),
)
