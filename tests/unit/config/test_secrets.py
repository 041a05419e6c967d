import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from icestream.config import CloudSettings, Settings, load_with_origins, reference, to_tree, to_yaml
from icestream.config.fields import MASK, mask_text
from icestream.config.tree import leaves

SECRET = "hunter2"
EVERYTHING = f"""
catalog:
  uri: postgresql://me:{SECRET}@db:5432/catalog
  properties:
    token: {SECRET}
    s3.secret-access-key: {SECRET}
    s3.endpoint: http://minio:9000
    uri: rest://me:{SECRET}@host
object_store: {{access_key: {SECRET}, secret_key: {SECRET}, session_token: {SECRET}, account_key: {SECRET}}}
cloud:
  access_key: {SECRET}
  secret_key: {SECRET}
  session_token: {SECRET}
  credentials_json: {SECRET}
  account_key: {SECRET}
  endpoint: https://host/?sig={SECRET}&x=1
"""

Load = Callable[..., Settings]
Problems = Callable[..., list[str]]


def test_no_secret_is_in_the_repr_or_the_listing(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text(EVERYTHING)
    loaded = load_with_origins(path, environ={})
    shown = (repr(loaded), str(loaded.settings), to_yaml(loaded, origins=True), json.dumps(to_tree(loaded)))
    for text in shown:
        assert SECRET not in text
        assert MASK in text
        assert "http://minio:9000" in text


def test_the_settings_themselves_have_the_real_values(load: Load) -> None:
    settings = load(EVERYTHING)
    assert settings.catalog.uri == f"postgresql://me:{SECRET}@db:5432/catalog"
    assert settings.catalog.properties["token"] == SECRET
    assert settings.cloud.account_key is not None
    assert settings.cloud.account_key.get_secret_value() == SECRET


@pytest.mark.parametrize("leaf", [leaf for leaf in leaves() if leaf.secret], ids=lambda leaf: leaf.key)
def test_a_bad_secret_is_masked_in_the_error(problems: Problems, leaf: object) -> None:
    key = str(getattr(leaf, "key", ""))
    section, name = key.split(".")
    (sentence,) = problems(f"{section}: {{{name}: [{SECRET}]}}")
    assert key in sentence
    assert MASK in sentence
    assert SECRET not in sentence


@pytest.mark.parametrize(
    "text",
    [
        f"cloud: {{secret_keyy: {SECRET}}}",
        f"cloud: {SECRET}",
        f"catalog: {{properties: {SECRET}}}",
        f"catalog: {{properties: {{token: [{SECRET}]}}}}",
        f"catalog: {{uri: ['sql://a:{SECRET}@b']}}",
        f"cloud: {{anonymous: true, access_key: {SECRET}, secret_key: {SECRET}}}",
    ],
)
def test_an_error_near_a_secret_does_not_print_it(problems: Problems, text: str) -> None:
    assert all(SECRET not in sentence for sentence in problems(text))


@pytest.mark.parametrize(
    ("model", "values"),
    [(CloudSettings, {"account_key": [SECRET]}), (Settings, {"cloud": {"account_key": [SECRET]}})],
)
def test_validation_without_loading_does_not_print_a_secret_either(
    model: type[BaseModel], values: dict[str, object]
) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    assert SECRET not in str(caught.value)


def test_fields_whose_name_says_secret_are_secret() -> None:
    words = ("access_key", "secret", "token", "password", "account_key", "credentials_json")
    plain = [leaf.key for leaf in leaves() if any(word in leaf.key for word in words) and not leaf.secret]
    assert plain == []


def test_the_reference_says_which_settings_are_secret() -> None:
    assert "| `cloud.secret_key` | secret text, or null | none |" in reference()


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text not in MASK))
def test_the_password_of_a_uri_never_shows(password: str) -> None:
    assert mask_text(f"postgresql://me:{password}@db/x") == f"postgresql://me:{MASK}@db/x"
