from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.config import Settings, SettingsError, load_settings
from icestream.config.sources import MAX_FILE_BYTES, ValueProblem, expand

Load = Callable[..., Settings]
Problems = Callable[..., list[str]]


def test_an_empty_file_and_empty_sections_are_the_defaults(load: Load) -> None:
    assert load("") == load("# nothing\n") == load("wal:\nlog:\n") == load("null") == Settings()


def test_a_syntax_error_names_file_line_and_column(problems: Problems, tmp_path: Path) -> None:
    (sentence,) = problems("wal:\n  dir: [a\n")
    assert sentence.startswith(f"{tmp_path}/broker.yaml, line 3, column 1: the settings file is not valid YAML: ")


@pytest.mark.parametrize(
    "text",
    [
        "wal: !!python/object/apply:os.system [ls]",
        "a: b\n---\nc: d",
        "wal: *nothing",
        "- a\n- b",
        "just text",
        "{[a]: b}",
        "wal: {dir: \x07}",
        "[" * 100_000,
        "a: " * 100,
        "wal: " + "{a: " * 200 + "1" + "}" * 200,
    ],
    ids=range(10),
)
def test_what_is_no_settings_file_is_one_problem_that_names_the_file(problems: Problems, text: str) -> None:
    (sentence,) = problems(text)
    assert "broker.yaml" in sentence


def test_a_duplicate_key_is_an_error(problems: Problems) -> None:
    (sentence,) = problems("wal:\n  dir: a\n  dir: a\n")
    assert "wal.dir" in sentence
    assert "line 3) is given twice, first on line 2" in sentence


def test_aliases_cannot_blow_up(problems: Problems) -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (sentence,) = problems("\n".join(["a0: &a0 x", *levels]))
    assert "has more than 10000 values" in sentence


def test_a_mapping_that_contains_itself_is_an_error(problems: Problems) -> None:
    assert "levels" in problems("wal: &w {retention: *w}")[0]


def test_a_plain_alias_works(load: Load) -> None:
    settings = load("object_store: {region: &here eu-west-1}\ncloud: {region: *here}")
    assert settings.object_store.region == settings.cloud.region == "eu-west-1"


@pytest.mark.parametrize("text", ["wal: {dir: !!int x}", "wal: {dir: !!float x}", "wal: {dir: 0x_}"])
def test_a_scalar_that_yaml_cannot_read_names_its_key(problems: Problems, text: str) -> None:
    (sentence,) = problems(text)
    assert "wal.dir" in sentence
    assert "put it in quotes" in sentence


def test_a_date_is_text(load: Load) -> None:
    assert load("cloud: {profile: 2024-01-01}").cloud.profile == "2024-01-01"


def test_a_missing_file_a_directory_and_a_huge_file_are_errors(tmp_path: Path) -> None:
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, expected in (
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path, "Is a directory"),
        (huge, "is larger than 1048576 bytes"),
        (binary, "is not UTF-8 text"),
    ):
        with pytest.raises(SettingsError, match=expected) as caught:
            load_settings(path, environ={})
        assert str(path) in str(caught.value)


def test_references_take_the_environment_or_their_default(load: Load) -> None:
    environ = {"HOST": "db", "EMPTY": "", "THREADS": "3"}
    settings = load(
        """
        catalog: {uri: "postgresql://${HOST}/x", name: "$${HOST}", warehouse: "${BUCKET:-s3://lake}"}
        cloud: {profile: "${EMPTY}", region: "${EMPTY:-eu}"}
        wal: {commit_threads: "${THREADS}"}
        """,
        environ,
    )
    assert settings.catalog.uri == "postgresql://db/x"
    assert settings.catalog.name == "${HOST}"
    assert settings.catalog.warehouse == "s3://lake"
    assert (settings.cloud.profile, settings.cloud.region) == (None, "eu")
    assert settings.wal.commit_threads == 3


def test_a_reference_without_a_variable_names_key_and_variable(problems: Problems) -> None:
    (sentence,) = problems("cloud:\n  access_key: ${AWS_KEY}\n")
    assert "cloud.access_key" in sentence
    assert "line 2) refers to the environment variable AWS_KEY, which is not set" in sentence


@pytest.mark.parametrize("text", ["${", "${}", "${1A}", "a${b c}", "${A", "${A-b}"])
def test_a_malformed_reference_is_refused(text: str) -> None:
    with pytest.raises(ValueProblem, match="not a reference"):
        expand(text, {})


@given(st.text())
def test_any_text_can_be_escaped(text: str) -> None:
    assert expand(text.replace("${", "$${"), {}) == text


@given(st.text(), st.text())
def test_a_replaced_value_is_not_expanded_again(before: str, value: str) -> None:
    assert expand(before.replace("$", "") + "${NAME}", {"NAME": value}) == before.replace("$", "") + value


@given(st.text(alphabet="wal: {}[]&*!-\n'\"0x$#?|>dirtype,", max_size=60))
def test_any_text_loads_or_is_a_settings_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        load_settings(path, environ={})
    except SettingsError as error:
        assert error.problems  # noqa: PT017  loading is also fine
