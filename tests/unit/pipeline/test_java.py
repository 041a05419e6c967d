import subprocess
from pathlib import Path

import pytest

from icestream.pipeline.spark import java
from icestream.pipeline.spark.cache import NotInstalledError
from icestream.pipeline.spark.java import is_stripped, java_home


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java, and with an empty cache."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "no programs"))
    monkeypatch.setenv("ICESTREAM_CACHE", str(tmp_path / "the cache"))


def make_java(home: Path, version: str, modules: str | None = None) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    described = f'JAVA_VERSION="{version}"\n' + (f'MODULES="{modules}"\n' if modules else "")
    (home / "release").write_text(described)
    return home


def test_the_packaged_java_starts() -> None:
    home = java_home()
    assert is_stripped(home)
    ran = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'version "21' in ran.stderr


def test_the_machines_own_java_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_path = make_java(tmp_path / "17", "17.0.1")
    named = make_java(tmp_path / "21", "21")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert java_home() == on_path
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java_home() == named


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "25"])
def test_a_java_of_another_version_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "other", version)))
    assert is_stripped(java_home())


def test_a_java_without_the_vector_module_is_not_asked_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = make_java(tmp_path / "it's stripped", "17.0.1", modules="java.base java.se")
    monkeypatch.setenv("JAVA_HOME", str(home))
    program = java_home() / "bin" / "java"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "--add-modules=java.se", ""]
    ran = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["-Xmx1g", "two words", "--add-modules=java.se", ""]


def test_a_program_that_only_calls_itself_java_is_named_in_the_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(broken.parent))
    monkeypatch.setattr(java, "packaged_java", None)
    with pytest.raises(NotInstalledError, match=rf"Java 17 or 21; {broken} is not a working Java .*|install") as caught:
        java_home()
    assert str(broken) in str(caught.value)
    assert caught.value.remedy
