from pathlib import Path

import pytest

from icestream.pipeline.spark.jars import repositories


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user with nothing configured."""
    for name in ("DEFAULT_ARTIFACT_REPOSITORY", "MAVEN_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".m2").mkdir()
    return tmp_path


def mirror(folder: Path, mirror_of: str, url: str = "https://mirror.example/maven?a=1&amp;b=2") -> None:
    text = f"<settings><mirrors><mirror><mirrorOf>{mirror_of}</mirrorOf><url>{url}</url></mirror></mirrors></settings>"
    (folder / "settings.xml").write_text(text)


def test_without_configuration_spark_takes_the_central_repository() -> None:
    assert repositories() == []


@pytest.mark.parametrize("mirror_of", ["central", "*", "external:*", "other, central", "*,!other"])
def test_a_mirror_of_the_central_repository_stands_in_for_it(home: Path, mirror_of: str) -> None:
    mirror(home / ".m2", mirror_of)
    assert repositories() == ["https://mirror.example/maven?a=1&b=2"]


@pytest.mark.parametrize("mirror_of", ["other", "*,!central", ""])
def test_a_mirror_of_something_else_does_not(home: Path, mirror_of: str) -> None:
    mirror(home / ".m2", mirror_of)
    assert repositories() == []


def test_mavens_own_installation_is_asked_after_the_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "maven" / "conf").mkdir(parents=True)
    monkeypatch.setenv("MAVEN_HOME", str(home / "maven"))
    mirror(home / "maven" / "conf", "central", "https://installed.example")
    assert repositories() == ["https://installed.example"]
    mirror(home / ".m2", "central", "https://user.example")
    assert repositories() == ["https://user.example"]


def test_the_repository_of_the_environment_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror(home / ".m2", "central", "https://user.example")
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "https://extra.example")
    assert repositories() == ["https://extra.example", "https://user.example"]
