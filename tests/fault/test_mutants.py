"""A short slice of the mutation check, `make mutants`, and that the check itself would notice."""

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "dev" / "mutants.py"
SLICE = ("commit-sync", "body-checksum", "de-duplication")


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(SCRIPT.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_without_the_sync_the_checksum_or_the_de_duplication_tests_fail() -> None:
    result = subprocess.run([sys.executable, str(SCRIPT), *SLICE], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(SLICE)} of {len(SLICE)} mutants killed" in result.stdout


def test_a_mutant_that_survives_or_cannot_be_made_is_reported(mutants: ModuleType, tmp_path: Path) -> None:
    copy = mutants.Copy(tmp_path)
    sound = next(mutant for mutant in mutants.MUTANTS if mutant.name == "torn-copy")
    ((target, _),) = sound.edits
    harmless = ((target, mutants.drop("warning")),)
    assert "SURVIVED" in mutants.check(copy, replace(sound, edits=harmless))
    assert "0 of a statement with gone, not 1" in mutants.check(
        copy, replace(sound, edits=((target, mutants.drop("gone")),))
    )
    assert "0 functions Nobody.does" in mutants.check(
        copy, replace(sound, edits=(("wal:Nobody.does", harmless[0][1]),))
    )
    assert "no nowhere" in mutants.check(copy, replace(sound, edits=((target, mutants.Body("return nowhere")),)))
