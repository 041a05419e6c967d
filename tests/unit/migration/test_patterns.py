"""A pattern means the same on a disk and in a bucket."""

from pathlib import Path

import pytest

from icestream.migration.sources import matches, split_pattern
from icestream.model.errors import InvalidRequestError

NAMES = ("x.parquet", "a/x.parquet", "a/y.parquet", "a/b/x.parquet", "a/b/c/x.parquet", "b/[1].parquet", "b/.z.parquet")
PATTERNS = (
    "*",
    "*.parquet",
    "*/*",
    "a/*",
    "a/?.parquet",
    "?/[xy].parquet",
    "?/[!x].parquet",
    "[[]*",
    "*/[[]1].parquet",
    "**/x.parquet",
    "a/**/x.parquet",
    "**/b/**/x.parquet",
    "**/b/*",
    "**",
    "a/**",
    "*/**/*",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_key_matches_as_a_path_does(tmp_path: Path, pattern: str) -> None:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    base, below = split_pattern(f"{tmp_path}/{pattern}")
    local = {found.relative_to(tmp_path).as_posix() for found in Path(base).glob(below) if found.is_file()}
    prefix = base.removeprefix(f"{tmp_path}/")
    keys = {name for name in NAMES if name.startswith(prefix) and matches(name.removeprefix(prefix), below)}
    assert keys == local


def test_a_star_stays_in_its_folder_and_two_cross_any() -> None:
    assert [name for name in NAMES if matches(name, "a/*")] == ["a/x.parquet", "a/y.parquet"]
    assert [name for name in NAMES if matches(name, "a/**/x.parquet")] == [
        "a/x.parquet",
        "a/b/x.parquet",
        "a/b/c/x.parquet",
    ]


def test_a_pattern_begins_at_the_first_folder_with_a_sign() -> None:
    assert split_pattern("old/date=*/x.parquet") == ("old/", "date=*/x.parquet")
    assert split_pattern("*.parquet") == ("", "*.parquet")
    assert split_pattern("old/x.parquet") == ("old/x.parquet", "")
    assert split_pattern("old/**") == ("old/", "**/*")


def test_two_stars_in_a_name_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="only part of a name; write"):
        split_pattern("old/a**/x")
