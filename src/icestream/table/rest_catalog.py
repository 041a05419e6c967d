"""A REST catalog with time-outs, which can plan reads.

The library's own requests have no time-out, and its plans drop the files' offsets that the server sends. The private
names of the library are used in `PatientRestCatalog` alone.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.scan_planning import PlanCompleted, PlanTableScanRequest, RESTDataFile, ScanTasks, ValueMap
from pyiceberg.expressions import BooleanExpression
from pyiceberg.typedef import Identifier

from icestream.table.planning import NO_END, PlannedFile
from icestream.table.pruning import without_bytes

if TYPE_CHECKING:
    from icestream.table.tables import TopicTable

_LONG = r"[0-9a-fA-F]{16}"


class PatientRestCatalog(RestCatalog):
    """The library's REST catalog, with a time-out for every request and access to the server's scan plans."""

    def __init__(self, name: str, timeout_seconds: int, **properties: str) -> None:
        self._timeout_seconds = timeout_seconds
        super().__init__(name, **properties)

    def scan_tasks(self, identifier: Identifier, request: PlanTableScanRequest) -> Iterator[ScanTasks] | None:
        """Yield the parts of the server's plan; return None if the server plans asynchronously."""
        response = self._plan_table_scan(identifier, request)
        if response.status == "submitted":
            return None
        if not isinstance(response, PlanCompleted):
            raise RuntimeError(f"the server's plan is {response.status}")  # noqa: TRY004 - a state of the server, not a type error
        return self._all_tasks(identifier, response)

    def _all_tasks(self, identifier: Identifier, first: ScanTasks) -> Iterator[ScanTasks]:
        yield first
        waiting = list(first.plan_tasks)
        while waiting:
            found = self._fetch_scan_tasks(identifier, waiting.pop(0))
            waiting += found.plan_tasks
            yield found

    def _create_session(self) -> Any:
        session = super()._create_session()
        # Every method of a session goes through `request`.
        session.request = partial(session.request, timeout=self._timeout_seconds)  # type: ignore[method-assign]
        return session


def server_planned(table: "TopicTable", expression: BooleanExpression) -> Iterator[PlannedFile] | None:
    """Return the files that the catalog's server plans for a read; None if it does not plan at once."""
    catalog = table.iceberg.catalog
    if not isinstance(catalog, PatientRestCatalog) or not catalog.supports_server_side_planning():
        return None
    request = PlanTableScanRequest.model_validate(
        {"snapshot-id": table.snapshot_id, "filter": without_bytes(expression), "stats-fields": [table.offset_column]}
    )
    responses = catalog.scan_tasks(table.iceberg.name(), request)
    return None if responses is None else _files(responses, table.offset_id)


def _files(responses: Iterator[ScanTasks], offset_id: int) -> Iterator[PlannedFile]:
    for response in responses:
        for task in response.file_scan_tasks:
            first, last = _bounds(task.data_file, offset_id)
            yield PlannedFile(
                first,
                task.data_file.file_path,
                last,
                task.data_file.record_count,
                task.data_file.file_size_in_bytes,
                bool(task.delete_file_references),
            )


def _bounds(file: RESTDataFile, offset_id: int) -> tuple[int, int]:
    first, last = _offset(file.lower_bounds, offset_id), _offset(file.upper_bounds, offset_id)
    return -1 if first is None else first, NO_END if last is None else last


def _offset(bounds: ValueMap | None, offset_id: int) -> int | None:
    """Return an offset: a number, as the protocol says, or bytes in hexadecimal, as Iceberg's own server sends."""
    match bounds.to_dict().get(offset_id) if bounds else None:
        case int(number):
            return number
        case str(text) if re.fullmatch(_LONG, text):
            return int.from_bytes(bytes.fromhex(text), "little", signed=True)
    return None
