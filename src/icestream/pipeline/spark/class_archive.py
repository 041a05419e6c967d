"""An archive of the JVM classes that a session loads (AppCDS), with which the next session starts faster.

A JVM writes it at its end. It fits one Java, one Spark folder and one set of options, which make up its name. Without
an archive the JVM starts normally; the JVM ignores an archive that does not fit.
"""

import hashlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from icestream.config import Settings
from icestream.pipeline.spark.cache import cache_dir, obtain
from icestream.pipeline.spark.java import java_home, spark_home

_SECONDS = 300


def archive_path(settings: Settings) -> Path:
    key = "\0".join((str(java_home()), str(spark_home()), version("pyspark"), settings.pipeline.java_options))
    return cache_dir() / "classes" / f"spark-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def archive_options(settings: Settings) -> list[str]:
    """Return the JVM options for the archive; none if there is no archive."""
    if not settings.pipeline.class_archive or not archive_path(settings).exists():
        return []
    # The JVM writes messages about archives to stdout, which is for figures.
    return [f"-XX:SharedArchiveFile={archive_path(settings)}", "-Xlog:disable", "-Xlog:all=error:stderr"]


def make_archive(settings: Settings) -> Path:
    """Return the archive for these settings. If it is missing, a session in a separate process makes it."""

    def build(path: Path) -> None:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "icestream.pipeline.spark.record_classes",
                settings.pipeline.java_options,
                str(path),
            ],
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=_SECONDS,
        )

    return obtain(archive_path(settings), build)


if __name__ == "__main__":
    sys.stdout.write(f"{make_archive(Settings())}\n")
