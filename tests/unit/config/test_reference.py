from pathlib import Path

import pytest

from icestream.config import Settings, reference
from icestream.config.tree import Leaf, leaves

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


@pytest.mark.parametrize("leaf", leaves(), ids=lambda leaf: leaf.key)
class TestEverySetting:
    def test_has_a_description(self, leaf: Leaf) -> None:
        assert leaf.description.endswith(".")
        assert leaf.description[0].isupper() or leaf.description[0] == "`"

    def test_has_bounds_and_a_unit_if_it_is_a_number(self, leaf: Leaf) -> None:
        if int in leaf.types or float in leaf.types:
            assert {"ge", "gt"} & set(leaf.bounds)
            assert "le" in leaf.bounds
            assert leaf.unit or leaf.key.endswith("_port")

    def test_has_a_default(self, leaf: Leaf) -> None:
        assert not leaf.info.is_required()

    def test_stands_in_the_reference_with_its_variable(self, leaf: Leaf) -> None:
        page = reference()
        assert page.count(f"\n| `{leaf.key}` | ") == 1
        assert f"| `{leaf.variable}` |" in page
        assert all(f"`{name}`" in page for name in leaf.other_names)


def test_every_section_says_which_part_uses_it() -> None:
    for name, info in Settings.model_fields.items():
        if name != "data_dir":
            assert info.annotation is not None
            assert "Used by " in str(info.annotation.__doc__)


def test_the_page_in_the_repository_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run: icestream config docs > docs/settings.md"


def test_the_reference_is_the_same_on_every_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = reference()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ICESTREAM_WAL__SYNC_MODE", "os")
    assert reference() == before
    assert str(Path.home()) not in before
