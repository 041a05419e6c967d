"""Jars from a repository on this disk, with the real Ivy."""

import hashlib
from pathlib import Path

import pytest

from icestream.model.errors import DamagedError, InvalidRequestError, UnavailableError
from icestream.pipeline.spark.jars import Coordinates, Jar, ensure_jars, obtain_jars

PLAIN = Coordinates("org.example", "example", "1.0")
TESTS = Coordinates("org.example", "example", "1.0", "tests")
OTHER = Coordinates("org.example", "other_2.13", "2.0")
PLACES = {PLAIN: "example/1.0", TESTS: "example/1.0", OTHER: "other_2.13/2.0"}


def content(coordinates: Coordinates) -> bytes:
    return coordinates.file_name.encode() * 1_000


def jar(coordinates: Coordinates) -> Jar:
    return Jar(coordinates, hashlib.sha256(content(coordinates)).hexdigest())


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only repository this machine knows: Maven's mirror of all others."""
    root = tmp_path / "repository"
    for coordinates, place in PLACES.items():
        folder = root / "org" / "example" / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / coordinates.file_name).write_bytes(content(coordinates))
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
    jars = [jar(PLAIN), jar(TESTS), jar(OTHER)]
    paths = obtain_jars(jars, said.append)
    assert [path.read_bytes() for path in paths] == [content(one) for one in (PLAIN, TESTS, OTHER)]
    assert said[0] == "fetching 3 jars"
    repository.rename(repository.with_name("gone"))
    assert obtain_jars(jars, said.append) == paths
    assert len(said) == 4
    assert {path.name for path in paths[0].parent.iterdir()} == {".lock", *(path.name for path in paths)}


def test_a_jar_with_other_bytes_is_refused(repository: Path) -> None:
    (repository / "org/example/example/1.0/example-1.0.jar").write_bytes(b"something else")
    with pytest.raises(DamagedError, match=r"example-1\.0\.jar came with SHA-256"):
        obtain_jars([jar(PLAIN)])
    assert not jar(PLAIN).path.exists()


@pytest.mark.usefixtures("repository")
def test_a_jar_that_no_repository_has_is_named_with_the_place() -> None:
    absent = Coordinates("org.example", "absent", "1.0")
    with pytest.raises(UnavailableError, match=r"repository/org/example/absent/1\.0/absent-1\.0\.jar") as caught:
        obtain_jars([jar(absent)])
    assert caught.value.retryable
    assert "DEFAULT_ARTIFACT_REPOSITORY" in caught.value.remedy


def test_a_repository_in_the_environment_is_asked_too(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = repository.rename(tmp_path / "moved")
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", moved.as_uri())
    assert obtain_jars([jar(OTHER)])[0].read_bytes() == content(OTHER)


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequestError, match="no jar is called sqlite; there are iceberg-spark-runtime"):
        ensure_jars(["sqlite"])
