"""Jars from a repository on this disk, resolved by the real Spark."""

import hashlib
from pathlib import Path

import pytest

from icestream.model.errors import DamagedError, InvalidRequestError, UnavailableError
from icestream.pipeline.spark.jars import Jar, ensure_jars, obtain_jars
from icestream_servers.rest_jars import ClassifiedJar, download


def content(file_name: str) -> bytes:
    return file_name.encode() * 1_000


def jar(artifact: str, version: str) -> Jar:
    return Jar("org.example", artifact, version, hashlib.sha256(content(f"{artifact}-{version}.jar")).hexdigest())


PLAIN = jar("example", "1.0")
OTHER = jar("other_2.13", "2.0")
TESTS = ClassifiedJar(
    "org.example", "example", "1.0", hashlib.sha256(content("example-1.0-tests.jar")).hexdigest(), "tests"
)
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>org.example</groupId><artifactId>example</artifactId><version>1.0</version>
<dependencies><dependency><groupId>org.slf4j</groupId><artifactId>slf4j-api</artifactId><version>2.0.0</version>
</dependency></dependencies></project>
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only repository this machine knows: Maven's mirror of all others."""
    root = tmp_path / "repository"
    for one in (PLAIN, OTHER, TESTS):
        folder = root / "org" / "example" / one.artifact / one.version
        folder.mkdir(parents=True, exist_ok=True)
        (folder / one.file_name).write_bytes(content(one.file_name))
    (root / "org" / "example" / "example" / "1.0" / "example-1.0.pom").write_text(POM)
    settings = tmp_path / "home" / ".m2" / "settings.xml"
    settings.parent.mkdir(parents=True)
    mirror = f"<mirror><id>own</id><mirrorOf>*</mirrorOf><url>{root.as_uri()}</url></mirror>"
    settings.write_text(
        f'<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors>{mirror}</mirrors></settings>'
    )
    monkeypatch.setenv("HOME", str(settings.parents[1]))
    monkeypatch.setenv("ICESTREAM_CACHE", str(tmp_path / "cache"))
    for name in ("DEFAULT_ARTIFACT_REPOSITORY", "MAVEN_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    return root


def test_jars_are_fetched_once_and_then_used_without_the_repository(repository: Path) -> None:
    said: list[str] = []
    jars = [PLAIN, OTHER]
    paths = obtain_jars(jars, said.append)
    assert [path.read_bytes() for path in paths] == [content(one.file_name) for one in jars]
    assert said[0] == "fetching 2 jars"
    repository.rename(repository.with_name("gone"))
    assert obtain_jars(jars, said.append) == paths
    assert len(said) == 3
    assert {path.name for path in paths[0].parent.iterdir()} == {".lock", *(path.name for path in paths)}


def test_a_jar_with_other_bytes_is_refused(repository: Path) -> None:
    (repository / "org/example/example/1.0/example-1.0.jar").write_bytes(b"something else")
    with pytest.raises(DamagedError, match=r"example-1\.0\.jar came with SHA-256"):
        obtain_jars([PLAIN], fetch=download)
    assert not PLAIN.path.exists()


@pytest.mark.usefixtures("repository")
def test_a_jar_that_no_repository_has_is_named_with_the_place() -> None:
    with pytest.raises(UnavailableError, match=r"repository/org/example/absent/1\.0/absent-1\.0\.jar") as caught:
        obtain_jars([jar("absent", "1.0")])
    assert caught.value.retryable
    assert "DEFAULT_ARTIFACT_REPOSITORY" in caught.value.remedy


def test_ivy_settings_of_spark_decide_alone(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = repository.rename(tmp_path / "moved")
    resolver = f'<ibiblio name="own" m2compatible="true" root="{moved.as_uri()}"/>'
    settings = f'<ivysettings><settings defaultResolver="own"/><resolvers>{resolver}</resolvers></ivysettings>'
    (tmp_path / "ivy.xml").write_text(settings)
    (tmp_path / "spark-defaults.conf").write_text(f"# a comment\nspark.jars.ivySettings {tmp_path / 'ivy.xml'}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    jars = [OTHER, PLAIN]
    assert [path.read_bytes() for path in obtain_jars(jars)] == [content(one.file_name) for one in jars]
    assert obtain_jars([TESTS], fetch=download)[0].read_bytes() == content(TESTS.file_name)


@pytest.mark.usefixtures("repository")
def test_the_servers_for_tests_take_jars_with_a_classifier() -> None:
    assert obtain_jars([TESTS], fetch=download)[0].read_bytes() == content("example-1.0-tests.jar")


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequestError, match="no jar is called sqlite; there are iceberg-spark-runtime"):
        ensure_jars(["sqlite"])
