import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from icestream.config import PipelineSettings, Settings
from icestream.pipeline.spark.class_archive import archive_options, archive_path
from icestream.pipeline.spark.session import properties
from icestream.pipeline.spark.worker import leave_archives


def chosen(**pipeline: object) -> dict[str, str]:
    return properties(Settings(pipeline=PipelineSettings.model_validate(pipeline)))


@pytest.mark.parametrize(
    ("master", "given"),
    [
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local", "local[1,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_task_is_tried_again_on_this_machine_too(master: str, given: str) -> None:
    assert chosen(master=master)["spark.master"] == given


def test_on_this_machine_alone_nothing_leaves_the_loopback_address() -> None:
    assert chosen()["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in chosen(master="spark://host:7077")


def test_properties_of_the_settings_win() -> None:
    given = chosen(spark={"spark.ui.enabled": "true", "spark.executor.memory": "1g"})
    assert (given["spark.ui.enabled"], given["spark.executor.memory"]) == ("true", "1g")
    assert chosen()["spark.ui.enabled"] == "false"
    assert chosen(ui=True)["spark.ui.enabled"] == "true"


def test_an_archive_of_classes_is_used_where_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICESTREAM_CACHE", str(tmp_path))
    settings = Settings()
    assert archive_options(settings) == []
    archive_path(settings).parent.mkdir(parents=True)
    archive_path(settings).touch()
    assert f"-XX:SharedArchiveFile={archive_path(settings)}" in archive_options(settings)
    assert archive_options(Settings(pipeline=PipelineSettings(class_archive=False))) == []
    assert archive_options(Settings(pipeline=PipelineSettings(java_options="-XX:+UseParallelGC"))) == []


def test_archives_leave_the_path_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w") as content:
        for name in ("some_package/", "some_package/part/"):
            content.writestr(name, "")
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", [str(archive), *before])
    importlib.import_module("some_package.part")
    leave_archives()
    assert str(archive) not in sys.path
    assert set(sys.path) <= set(before)
    # Python reads the directory of an archive again for a package in it, at every task.
    assert not [name for name in sys.modules if name.startswith("some_package")]
    importlib.invalidate_caches()
    assert not [entry for entry in sys.path_importer_cache if entry.startswith(str(archive))]
