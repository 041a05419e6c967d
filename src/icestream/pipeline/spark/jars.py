"""Iceberg's jars for Spark: fetched once into the cache folder, checked, and used from there without any network.

Writing tables needs none of them; table maintenance and Spark SQL do. `ensure_jars` gives the files;
`python -m icestream.pipeline.spark.jars` fetches all of them ahead of time.
"""

import hashlib
import os
import re
import ssl
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import quoteattr

from icestream.model.errors import DamagedError, InvalidRequestError, UnavailableError
from icestream.pipeline.spark.cache import NotInstalledError, Report, cache_dir, locked, place, scratch, silent
from icestream.pipeline.spark.java import is_stripped, java_home, spark_home

# --------------------
# Where jars come from: the package repositories that this machine is configured to use.
#
# In this order: the Ivy settings that Spark's configuration names (`spark.jars.ivySettings`), which then decide alone;
# else the local Maven repository, the repository in `DEFAULT_ARTIFACT_REPOSITORY`, and the mirror of the central
# repository in Maven's `settings.xml`, or the central repository itself.


def spark_ivy_settings() -> Path | None:
    folder = os.environ.get("SPARK_CONF_DIR")
    file = (Path(folder) if folder else spark_home() / "conf") / "spark-defaults.conf"
    if file.is_file():
        for line in file.read_text().splitlines():
            name, _, value = line.strip().replace("=", " ", 1).partition(" ")
            if name == "spark.jars.ivySettings" and value:
                return Path(value.strip())
    return None


def ivy_settings() -> str:
    """Ivy settings with the repositories in order; without a root Ivy means the central one."""
    resolvers = "".join(
        f'<ibiblio name="repository-{number}" m2compatible="true" usepoms="false" useMavenMetadata="false"'
        f"{f' root={quoteattr(root)}' if root else ''}/>"
        for number, root in enumerate(_repositories())
    )
    return (
        '<ivysettings><settings defaultResolver="all"/>'
        f'<resolvers><chain name="all" returnFirst="true">{resolvers}</chain></resolvers></ivysettings>'
    )


def _repositories() -> Iterator[str | None]:
    local = Path.home() / ".m2" / "repository"
    if local.is_dir():
        yield local.as_uri()
    if extra := os.environ.get("DEFAULT_ARTIFACT_REPOSITORY"):
        yield extra
    yield _maven_mirror()


def _maven_mirror() -> str | None:
    """The mirror that Maven's settings put before the central repository."""
    files = [Path.home() / ".m2" / "settings.xml"]
    files += [Path(home) / "conf" / "settings.xml" for home in (os.environ.get("MAVEN_HOME"),) if home]
    for file in files:
        if file.is_file():
            for mirror in ET.parse(file).iterfind("{*}mirrors/{*}mirror"):  # noqa: S314  # the user's own file
                if _is_of_central(mirror.findtext("{*}mirrorOf", "")):
                    return mirror.findtext("{*}url", "").strip() or None
    return None


def _is_of_central(mirror_of: str) -> bool:
    patterns = [part.strip() for part in mirror_of.split(",")]
    return "!central" not in patterns and any(part in patterns for part in ("*", "central", "external:*"))


# --------------------
# Certificates for a packaged Java: a trust store with those that this machine trusts.
#
# A Java from a package registry trusts the public authorities it was built with. Where a company's own certificate
# stands between the machine and its package mirrors, Python and the system know it and such a Java does not.


PASSWORD = "changeit"  # noqa: S105  # Java's own default; a trust store holds nothing secret
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def write_trust_store(path: Path) -> bool:
    """Write the machine's certificates to `path`, for Java's `javax.net.ssl.trustStore`; False when it has none."""
    certificates = _machine_certificates()
    if certificates:
        path.write_bytes(_java_key_store(certificates))
    return bool(certificates)


def _machine_certificates() -> list[bytes]:
    """Those of OpenSSL's bundle and folder, as the environment (`SSL_CERT_FILE`, `SSL_CERT_DIR`) moves them."""
    places = ssl.get_default_verify_paths()
    files = [Path(places.cafile)] if places.cafile else []
    files += sorted(Path(places.capath).iterdir()) if places.capath and Path(places.capath).is_dir() else []
    texts = [file.read_text(errors="ignore") for file in files if file.is_file()]
    return sorted({ssl.PEM_cert_to_DER_cert(pem) for text in texts for pem in _PEM.findall(text)})


def _java_key_store(certificates: list[bytes]) -> bytes:
    """Java's own format (JKS): a header, the entries, and a digest over them that is salted with the password."""
    content = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        trusted_certificate, created_ms = 2, 0
        content += struct.pack(">I", trusted_certificate) + _text(f"machine-{number}") + struct.pack(">Q", created_ms)
        content += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    salt = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    return content + hashlib.sha1(salt + content, usedforsecurity=False).digest()


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


# --------------------
# Fetches jars with Ivy, the resolver that Spark carries, from where this machine is told to get them.
#
# `repositories` says where that is; proxies are taken from the environment. Jars are fetched one by one, without what
# they depend on: no descriptions are read, which would take far longer than the jars.


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


@dataclass(frozen=True)
class Jar:
    """A jar and the bytes it must have, whichever repository it comes from."""

    coordinates: Coordinates
    sha256: str

    @property
    def path(self) -> Path:
        """Where it is once it was obtained."""
        return cache_dir() / "jars" / self.coordinates.file_name


JARS = {
    "iceberg-spark-runtime": Jar(
        Coordinates("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0"),
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    ),
    "iceberg-aws-bundle": Jar(
        Coordinates("org.apache.iceberg", "iceberg-aws-bundle", "1.12.0"),
        "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    ),
    "sqlite-jdbc": Jar(
        Coordinates("org.xerial", "sqlite-jdbc", "3.50.3.0"),
        "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
    ),
    "postgresql": Jar(
        Coordinates("org.postgresql", "postgresql", "42.7.8"),
        "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7",
    ),
}


def ensure_jars(names: Iterable[str], report: Report = silent) -> list[Path]:
    """The files of some of `JARS`, in the order asked for. Only what is missing is fetched."""
    unknown = sorted(set(names := list(names)) - JARS.keys())
    if unknown:
        raise InvalidRequestError(f"no jar is called {', '.join(unknown)}; there are {', '.join(JARS)}")
    return obtain_jars([JARS[name] for name in names], report)


def obtain_jars(jars: Sequence[Jar], report: Report = silent) -> list[Path]:
    """The files of any jars; two processes that want the same do not fetch it twice."""
    if _missing(jars):
        with locked(cache_dir() / "jars"):
            if missing := _missing(jars):
                _fetch(missing, report)
    return [jar.path for jar in jars]


def _missing(jars: Sequence[Jar]) -> list[Jar]:
    return [jar for jar in jars if not jar.path.exists()]


def _fetch(jars: Sequence[Jar], report: Report) -> None:
    with scratch(cache_dir() / "jars") as room:
        report(f"fetching {len(jars)} jars")
        fetch([jar.coordinates for jar in jars], room)
        for jar in jars:
            fetched = room / jar.coordinates.file_name
            with fetched.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != jar.sha256:
                raise DamagedError(
                    f"{fetched.name} came with SHA-256 {found} instead of {jar.sha256}",
                    operation="fetch jars",
                    remedy="do not use it; see whether the repository or a proxy changed it",
                )
            report(f"{fetched.name}, {fetched.stat().st_size / 1e6:.1f} MB")
            place(fetched, jar.path)


def main() -> None:
    """Say what is fetched and where the files are."""
    for path in ensure_jars(JARS, lambda line: print(f"jars: {line}", file=sys.stderr)):  # noqa: T201  # a command
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
