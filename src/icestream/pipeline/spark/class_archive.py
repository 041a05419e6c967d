"""An archive of the JVM classes that a session loads, so that the next one starts quicker.

It is made by a JVM at its end and belongs to one Java, one Spark in its place and one set of options, which make up its
name. Without one the JVM starts as it always does; one that does not fit is passed over by the JVM itself.
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
    """What to tell the JVM about the archive, if there is one to use."""
    if not settings.pipeline.class_archive or not archive_path(settings).exists():
        return []
    # What the JVM says about archives goes to stdout, which is for figures.
    return [f"-XX:SharedArchiveFile={archive_path(settings)}", "-Xlog:disable", "-Xlog:all=error:stderr"]


def make_archive(settings: Settings) -> Path:
    """The archive for these settings; a session in a process of its own makes it unless it is there."""

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
