from pathlib import Path

import pytest

from icestream.pipeline.spark.jars import ivy_settings, spark_ivy_settings


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


def test_without_configuration_ivy_takes_the_central_repository() -> None:
    assert "root=" not in ivy_settings()
    assert ivy_settings().count("<ibiblio") == 1


@pytest.mark.parametrize("mirror_of", ["central", "*", "external:*", "other, central", "*,!other"])
def test_a_mirror_of_the_central_repository_stands_in_for_it(home: Path, mirror_of: str) -> None:
    mirror(home / ".m2", mirror_of)
    assert 'root="https://mirror.example/maven?a=1&amp;b=2"' in ivy_settings()


@pytest.mark.parametrize("mirror_of", ["other", "*,!central", ""])
def test_a_mirror_of_something_else_does_not(home: Path, mirror_of: str) -> None:
    mirror(home / ".m2", mirror_of)
    assert "root=" not in ivy_settings()


def test_mavens_own_installation_is_asked_after_the_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "maven" / "conf").mkdir(parents=True)
    monkeypatch.setenv("MAVEN_HOME", str(home / "maven"))
    mirror(home / "maven" / "conf", "central", "https://installed.example")
    assert 'root="https://installed.example"' in ivy_settings()
    mirror(home / ".m2", "central", "https://user.example")
    assert 'root="https://user.example"' in ivy_settings()


def test_local_and_extra_repositories_come_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".m2" / "repository").mkdir()
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "https://extra.example")
    settings = ivy_settings()
    local, extra = settings.index((home / ".m2" / "repository").as_uri()), settings.index("https://extra.example")
    assert local < extra < settings.rindex("<ibiblio")


@pytest.mark.parametrize("line", ["spark.jars.ivySettings /etc/ivy.xml", "spark.jars.ivySettings=/etc/ivy.xml"])
def test_ivy_settings_of_spark_decide_alone(home: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(home))
    assert spark_ivy_settings() is None
    (home / "spark-defaults.conf").write_text(f"# a comment\nspark.ui.enabled false\n{line}\n")
    assert spark_ivy_settings() == Path("/etc/ivy.xml")
