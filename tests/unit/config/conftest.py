from collections.abc import Callable
from pathlib import Path

import pytest

from icestream.config import Settings, SettingsError, load_settings

Load = Callable[..., Settings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads YAML text with a given environment, and nothing of this machine's."""

    def load_text(text: str = "", environ: dict[str, str] | None = None, **overrides: object) -> Settings:
        path = tmp_path / "broker.yaml"
        path.write_text(text, encoding="utf-8")
        return load_settings(path, {key.replace("__", "."): value for key, value in overrides.items()}, environ or {})

    return load_text


@pytest.fixture
def problems(load: Load) -> Callable[..., list[str]]:
    """The sentences that loading fails with."""

    def failing(text: str = "", environ: dict[str, str] | None = None, **overrides: object) -> list[str]:
        with pytest.raises(SettingsError) as caught:
            load(text, environ, **overrides)
        assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
        return [str(problem) for problem in caught.value.problems]

    return failing
