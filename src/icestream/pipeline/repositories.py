"""Where jars come from: the package repositories that this machine is configured to use.

In this order: the Ivy settings that Spark's configuration names (`spark.jars.ivySettings`), which then decide alone;
else the local Maven repository, the repository in `DEFAULT_ARTIFACT_REPOSITORY`, and the mirror of the central
repository in Maven's `settings.xml`, or the central repository itself.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET
from xml.sax.saxutils import quoteattr

from icestream.pipeline.java import spark_home


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
