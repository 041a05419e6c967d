"""Fetches jars with Ivy, the resolver that Spark carries, from where this machine is told to get them.

`repositories` says where that is; proxies are taken from the environment. Jars are fetched one by one, without what
they depend on: no descriptions are read, which would take far longer than the jars.
"""

import re
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from icestream.model.errors import UnavailableError
from icestream.pipeline.cache import NotInstalledError
from icestream.pipeline.java import is_stripped, java_home, spark_home
from icestream.pipeline.repositories import ivy_settings, spark_ivy_settings
from icestream.pipeline.trust_store import PASSWORD, write_trust_store

_FETCH_SECONDS = 1800
_SHOWN_LINES = 8
_MAVEN_NAMESPACE = "http://ant.apache.org/ivy/maven"


@dataclass(frozen=True)
class Coordinates:
    """Where repositories keep a jar."""

    group: str
    artifact: str
    version: str
    classifier: str = ""

    @property
    def file_name(self) -> str:
        return f"{'-'.join(part for part in (self.artifact, self.version, self.classifier) if part)}.jar"


def fetch(jars: Sequence[Coordinates], into: Path) -> None:
    """Put each jar under its `file_name` into a folder, where Ivy also keeps what it needs for itself."""
    settings = spark_ivy_settings()
    if settings is None:
        settings = into / "ivysettings.xml"
        settings.write_text(ivy_settings())
    wanted = into / "ivy.xml"
    wanted.write_text(_wanted(jars))
    command = [
        *_java(into),
        *("-classpath", str(_ivy_jar()), "org.apache.ivy.Main", "-warn"),
        *("-settings", str(settings), "-ivy", str(wanted), "-cache", str(into / "ivy-cache")),
        *("-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        raise _failed(f"it took more than {_FETCH_SECONDS} s") from None
    if done.returncode or not all((into / jar.file_name).exists() for jar in jars):
        raise _failed(_reason(done.stdout + done.stderr))


def _reason(output: str) -> str:
    """The lines that say something, of which Ivy writes few among many."""
    lines = [line.strip(" \t:") for line in output.splitlines()]
    telling = [line for line in lines if re.search(r"not found|error|exception|(https?|file):/", line, re.IGNORECASE)]
    return ", ".join(dict.fromkeys(telling[:_SHOWN_LINES])) or "Ivy did not say why"


def _failed(reason: str) -> UnavailableError:
    return UnavailableError(
        f"jars could not be fetched: {reason}",
        operation="fetch jars",
        remedy="set DEFAULT_ARTIFACT_REPOSITORY, or a mirror in ~/.m2/settings.xml, if there is another repository",
    )


def _java(folder: Path) -> Iterator[str]:
    home = java_home()
    yield str(home / "bin" / "java")
    yield "-XX:TieredStopAtLevel=1"
    if is_stripped(home) and write_trust_store(folder / "trust.jks"):
        yield f"-Djavax.net.ssl.trustStore={folder / 'trust.jks'}"
        yield f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"
    for scheme in ("http", "https"):
        proxy = urlsplit(urllib.request.getproxies().get(scheme, ""))
        if proxy.hostname:
            yield f"-D{scheme}.proxyHost={proxy.hostname}"
            yield f"-D{scheme}.proxyPort={proxy.port or 80}"


def _ivy_jar() -> Path:
    jars = spark_home() / "jars"
    for path in jars.glob("ivy-*.jar"):
        return path
    raise NotInstalledError("this Spark has no Ivy", operation="fetch jars", place=str(jars))


def _wanted(jars: Sequence[Coordinates]) -> str:
    """Ivy's own file: one dependency for each version of a module, with the artifacts wanted of it."""
    root = ET.Element("ivy-module", {"version": "2.0", "xmlns:m": _MAVEN_NAMESPACE})
    ET.SubElement(root, "info", organisation="icestream", module="jars")
    ET.SubElement(ET.SubElement(root, "configurations"), "conf", name="default")
    dependencies = ET.SubElement(root, "dependencies")
    for group, artifact, version in dict.fromkeys((jar.group, jar.artifact, jar.version) for jar in jars):
        names = {"org": group, "name": artifact, "rev": version, "transitive": "false", "conf": "default->*"}
        module = ET.SubElement(dependencies, "dependency", names)
        for jar in jars:
            if (jar.group, jar.artifact, jar.version) == (group, artifact, version):
                classifier = {"m:classifier": jar.classifier} if jar.classifier else {}
                ET.SubElement(module, "artifact", {"name": artifact, "type": "jar", **classifier})
    return ET.tostring(root, encoding="unicode")
