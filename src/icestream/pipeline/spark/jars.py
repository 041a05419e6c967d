"""Iceberg's jars for Spark: fetched once into the cache folder, checked, and used from there without any network.

Writing tables needs none of them; table maintenance and Spark SQL do. `ensure_jars` returns the files;
`python -m icestream.pipeline.spark.jars` fetches all of them ahead of time.

Spark resolves the jars itself, as it does for `spark.jars.packages`. So the Ivy settings that Spark's configuration
names (`spark.jars.ivySettings`) decide alone where jars come from. Without them it is the local Maven repository, the
repository in `DEFAULT_ARTIFACT_REPOSITORY`, and the mirror of the central repository in Maven's `settings.xml`, or the
central repository itself. Proxies and trusted certificates are those of the environment.
"""

import contextlib
import hashlib
import os
import re
import shlex
import ssl
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from icestream.model.errors import DamagedError, InvalidRequestError, UnavailableError
from icestream.pipeline.spark.cache import Report, cache_dir, locked, place, scratch, silent
from icestream.pipeline.spark.java import is_stripped, java_home, spark_home

REPOSITORY_VARIABLE = "DEFAULT_ARTIFACT_REPOSITORY"
"""Spark's own: its resolver takes this repository for the central one."""
PASSWORD = "changeit"  # noqa: S105  # Java's own default; a trust store holds nothing secret
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_FETCH_SECONDS = 1800
_SHOWN_LINES = 8
_NOT_NEEDED = ("org.slf4j:slf4j-api", "org.checkerframework:checker-qual")
"""What the jars say they depend on: Spark has the first, and the second is for compilers."""


def repositories() -> list[str]:
    """Return the repositories that this machine is configured to use, in order; none means the central one."""
    return [root for root in (os.environ.get(REPOSITORY_VARIABLE), _maven_mirror()) if root]


def _maven_mirror() -> str | None:
    """Return the mirror that Maven's settings put before the central repository."""
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


def write_trust_store(path: Path) -> bool:
    """Write the certificates that this machine trusts to `path`, for Java; return whether there are any.

    A Java from a package registry trusts the public authorities it was built with. It does not know a company's own
    certificate between the machine and its package mirrors, which Python and the system do know.
    """
    found = ssl.get_default_verify_paths()  # as `SSL_CERT_FILE` and `SSL_CERT_DIR` move them
    files = [Path(found.cafile)] if found.cafile else []
    files += sorted(Path(found.capath).iterdir()) if found.capath and Path(found.capath).is_dir() else []
    texts = [file.read_bytes() for file in files if file.is_file()]
    certificates: set[x509.Certificate] = set()
    for pem in (pem for text in texts for pem in _PEM.findall(text)):
        with contextlib.suppress(ValueError), warnings.catch_warnings(action="ignore"):  # old roots break newer rules
            certificates.add(x509.load_pem_x509_certificate(pem))
    if certificates:
        entries = [pkcs12.PKCS12Certificate(one, one.fingerprint(SHA256()).hex().encode()) for one in certificates]
        path.write_bytes(pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(PASSWORD.encode())))
    return bool(certificates)


def resolve_with_spark(jars: "Sequence[Jar]", into: Path) -> None:
    """Have Spark resolve the jars, and put each under its `file_name` into a folder that is ours alone."""
    script = into / "nothing.py"  # an application for Spark: it has resolved the jars before it runs one
    script.touch()
    roots = repositories()
    command = [str(spark_home() / "bin" / "spark-submit"), "--conf", f"spark.jars.ivy={into / 'ivy'}"]
    command += ["--packages", ",".join(jar.coordinates for jar in jars), "--exclude-packages", ",".join(_NOT_NEEDED)]
    command += ["--repositories", ",".join(roots[:-1])] if roots[1:] else []
    environ = os.environ | {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": shlex.join(_java_options(into)),
    }
    environ |= {REPOSITORY_VARIABLE: roots[-1]} if roots else {}
    try:
        done = subprocess.run(
            [*command, str(script)], env=environ, capture_output=True, text=True, check=False, timeout=_FETCH_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise _failed(f"it took more than {_FETCH_SECONDS} s") from None
    fetched = {jar: into / "ivy" / "jars" / f"{jar.group}_{jar.file_name}" for jar in jars}
    if done.returncode or not all(path.exists() for path in fetched.values()):
        raise _failed(_reason(done.stdout + done.stderr))
    for jar, path in fetched.items():
        path.rename(into / jar.file_name)


def _java_options(folder: Path) -> Iterator[str]:
    yield "-XX:TieredStopAtLevel=1"
    if is_stripped(java_home()) and write_trust_store(folder / "trust.p12"):
        yield f"-Djavax.net.ssl.trustStore={folder / 'trust.p12'}"
        yield f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"
    for scheme in ("http", "https"):
        proxy = urlsplit(urllib.request.getproxies().get(scheme, ""))
        if proxy.hostname:
            yield f"-D{scheme}.proxyHost={proxy.hostname}"
            yield f"-D{scheme}.proxyPort={proxy.port or 80}"
    if direct := urllib.request.getproxies().get("no"):
        hosts = (host.strip() for host in direct.split(","))
        # Java wants `*.example.org` where the environment may say `.example.org`.
        yield f"-Dhttp.nonProxyHosts={'|'.join(f'*{host}' if host.startswith('.') else host for host in hosts if host)}"


def _reason(output: str) -> str:
    """Return the lines of Spark's report that name a reason or a file."""
    lines = [line.strip(" \t:") for line in output.splitlines()]
    telling = [line for line in lines if re.search(r"not found|error|exception|(https?|file):/", line, re.IGNORECASE)]
    return ", ".join(dict.fromkeys(telling[:_SHOWN_LINES])) or "Spark did not say why"


def _failed(reason: str) -> UnavailableError:
    return UnavailableError(
        f"jars could not be fetched: {reason}",
        operation="fetch jars",
        remedy=f"set {REPOSITORY_VARIABLE}, or a mirror in ~/.m2/settings.xml, if there is another repository",
    )


@dataclass(frozen=True)
class Jar:
    """A jar by its coordinates, and the bytes it must have, whichever repository it comes from."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> Path:
        """Where it is once it was obtained."""
        return cache_dir() / "jars" / self.file_name


Fetching = Callable[[Sequence[Jar], Path], None]
"""Puts each jar under its `file_name` into a folder."""
JARS = {
    "iceberg-spark-runtime": Jar(
        "org.apache.iceberg",
        "iceberg-spark-runtime-4.1_2.13",
        "1.12.0",
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    ),
    "iceberg-aws-bundle": Jar(
        "org.apache.iceberg",
        "iceberg-aws-bundle",
        "1.12.0",
        "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    ),
    "sqlite-jdbc": Jar(
        "org.xerial",
        "sqlite-jdbc",
        "3.50.3.0",
        "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
    ),
    "postgresql": Jar(
        "org.postgresql",
        "postgresql",
        "42.7.8",
        "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7",
    ),
}


def ensure_jars(names: Iterable[str], report: Report = silent) -> list[Path]:
    """Return the files of some of `JARS`, in the order asked for. Only what is missing is fetched."""
    unknown = sorted(set(names := list(names)) - JARS.keys())
    if unknown:
        raise InvalidRequestError(f"no jar is called {', '.join(unknown)}; there are {', '.join(JARS)}")
    return obtain_jars([JARS[name] for name in names], report)


def obtain_jars(jars: Sequence[Jar], report: Report = silent, fetch: Fetching = resolve_with_spark) -> list[Path]:
    """Return the files of any jars; two processes that want the same do not fetch it twice."""
    if _missing(jars):
        with locked(cache_dir() / "jars"):
            if missing := _missing(jars):
                _fetch(missing, report, fetch)
    return [jar.path for jar in jars]


def _missing(jars: Sequence[Jar]) -> list[Jar]:
    return [jar for jar in jars if not jar.path.exists()]


def _fetch(jars: Sequence[Jar], report: Report, fetch: Fetching) -> None:
    with scratch(cache_dir() / "jars") as room:
        report(f"fetching {len(jars)} jars")
        fetch(jars, room)
        for jar in jars:
            fetched = room / jar.file_name
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
