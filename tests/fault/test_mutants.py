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
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_without_the_sync_the_checksum_or_the_de_duplication_tests_fail() -> None:
    result = subprocess.run([sys.executable, str(SCRIPT), *SLICE], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(SLICE)} of {len(SLICE)} mutants killed" in result.stdout


def test_every_mutant_still_finds_the_text_that_it_replaces(mutants: ModuleType) -> None:
    for mutant in mutants.MUTANTS:
        text = (SCRIPT.parents[1] / mutant.file).read_text()
        for old, new in mutant.edits:
            assert text.count(old) == 1, (mutant.name, old)
            assert old != new


def test_a_mutant_that_survives_or_cannot_be_made_is_told(mutants: ModuleType, tmp_path: Path) -> None:
    copy = mutants.Copy(tmp_path)
    sound = next(mutant for mutant in mutants.MUTANTS if mutant.name == "torn-copy")
    (old, _), *_ = sound.edits
    assert "SURVIVED" in mutants.check(copy, replace(sound, edits=((old, old),)))
    assert "0 times" in mutants.check(copy, replace(sound, edits=(("no such text", ""),)))
