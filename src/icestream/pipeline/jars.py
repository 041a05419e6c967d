"""Iceberg's jars for Spark: fetched once into the cache folder, checked, and used from there without any network.

Writing tables needs none of them; table maintenance and Spark SQL do. `ensure_jars` gives the files;
`python -m icestream.pipeline.jars` fetches all of them ahead of time.
"""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from icestream.model.errors import DamagedError, InvalidRequestError
from icestream.pipeline.cache import Report, cache_dir, locked, place, scratch, silent
from icestream.pipeline.ivy import Coordinates, fetch


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
