from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from icestream.cli.config import command as config
from icestream.config import Settings, load_settings

Problems = Callable[..., list[str]]
SECTIONS = ("pipeline", "maintenance")
ALLOWED = "it takes `local`, `local[N]`, `local[*]`, `local[N,M]` (N cores, M attempts per task), "


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[1]",
        "local[16]",
        "local[*]",
        "local[4,2]",
        "local[*, 2]",
        "local-cluster[2,1,1024]",
        "spark://host:7077",
        "spark://10.0.0.1:7077",
        "spark://[::1]:7077",
        "spark://one.example:7077,two-b.example:7078",
        "yarn",
        "k8s://https://cluster.example:6443",
        "k8s://127.0.0.1:6443",
    ],
)
def test_what_spark_takes_for_a_master_is_taken(section: str, master: str) -> None:
    settings = load_settings(None, {f"{section}.master": master}, environ={})
    assert getattr(settings, section).master == master


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize(
    "master",
    [
        "nonsense",
        "Local[2]",
        "local[]",
        "local[0]",
        "local[-1]",
        "local[x]",
        "local[2,0]",
        "local[2",
        "local[2]\n",
        "local-cluster[2,1]",
        "spark://",
        "spark://host",
        "spark://host:7077,",
        "spark://host:7077/path",
        "spark://under_score:7077",
        "host:7077",
        "yarn-client",
        "k8s://",
        " local",
    ],
)
def test_another_master_is_refused_with_what_is_allowed(problems: Problems, section: str, master: str) -> None:
    (sentence,) = problems("", **{f"{section}__master": master})
    assert sentence.startswith(f"{section}.master (flag) is {master!r}; {ALLOWED}")


def test_maintenance_takes_the_pipelines_master_where_it_has_none() -> None:
    assert Settings().maintenance.master is None


@pytest.mark.parametrize("section", SECTIONS)
def test_config_check_finds_it(tmp_path: Path, section: str) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text(f"{section}:\n  master: nonsense\n")
    result = CliRunner().invoke(config, ["check", "--config", str(file)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{section}.master ({file}, line 2) is 'nonsense'; {ALLOWED}" in result.stderr
