"""A REST catalog whose requests end: the library's own wait for an answer for ever."""

from functools import partial
from typing import Any

from pyiceberg.catalog.rest import RestCatalog


class PatientRestCatalog(RestCatalog):
    def __init__(self, name: str, timeout_seconds: int, **properties: str) -> None:
        self._timeout_seconds = timeout_seconds
        super().__init__(name, **properties)

    def _create_session(self) -> Any:
        session = super()._create_session()
        # Every method of a session goes through `request`.
        session.request = partial(session.request, timeout=self._timeout_seconds)  # type: ignore[method-assign]
        return session
