from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from icestream.config import AuthSettings, Settings, SettingsError, load_settings


def test_entries_are_separated_by_white_space_or_commas() -> None:
    text = "acme=token-of-acme, globex=token-of-globex\n*=token=with=signs acme=another-one"
    assert AuthSettings(tokens=SecretStr(text)).token_pairs == [
        ("acme", "token-of-acme"),
        ("globex", "token-of-globex"),
        ("*", "token=with=signs"),
        ("acme", "another-one"),
    ]


def test_no_token_is_needed_by_default() -> None:
    assert Settings().auth.token_pairs == []


@pytest.mark.parametrize(
    "text",
    [
        "acme",
        "acme=short",
        "=long-enough-token",
        "acme=the-same-token globex=the-same-token",
        " , ",
        "acme=long-enough-tökens",
        "a/b=long-enough-token",
        "_other=long-enough-token",
    ],
)
def test_tokens_that_cannot_work_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        AuthSettings(tokens=SecretStr(text))
    assert "long-enough" not in str(caught.value)
    assert "the-same-token" not in str(caught.value)


def test_they_come_from_the_environment_and_are_not_shown() -> None:
    settings = load_settings(None, {}, environ={"ICESTREAM_AUTH__TOKENS": "acme=a-secret-token"})
    assert settings.auth.token_pairs == [("acme", "a-secret-token")]
    assert "a-secret-token" not in repr(settings)


def test_the_earlier_name_is_an_error_that_names_it() -> None:
    with pytest.raises(SettingsError, match="ICESTREAM_TELEMETRY__TOKENS"):
        load_settings(None, {}, environ={"ICESTREAM_TELEMETRY__TOKENS": "acme=a-secret-token"})


@pytest.mark.parametrize("text", ["auth: {tokens: ''}", "auth: {tokens: '${NOWHERE:-}'}"])
def test_empty_tokens_do_not_open_the_doors(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match="is empty: leave it out"):
        load_settings(file, {}, environ={})
    with pytest.raises(SettingsError, match="is empty"):
        load_settings(None, {}, environ={"ICESTREAM_AUTH__TOKENS": ""})
