"""Start a session that writes the archive of its classes to FILE.

python -m icestream.pipeline.spark.record_classes OPTIONS FILE
"""

import sys

from icestream.config import PipelineSettings, Settings
from icestream.pipeline.spark.session import Spark


def main(java_options: str, path: str) -> None:
    recording = f"{java_options} -XX:ArchiveClassesAtExit={path} -Xlog:cds=off -Xlog:cds+dynamic=off"
    with Spark(Settings(pipeline=PipelineSettings(master="local[1]", java_options=recording, class_archive=False))):
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
