"""The table's files: whether they lie as they should, and are what the table says of them."""

from icestream.storage.verify.findings import Finding, Kind, Verification
from icestream.table.contents import Contents, StoredFile
from icestream.table.ordered import RowGroup


class Layout:
    """Is told of row groups as they are opened, those of a file one after the other."""

    def __init__(self, contents: Contents, report: Verification) -> None:
        self._contents = contents
        self._files = {file.path: file for file in contents.files}
        self._report = report
        self._path = ""
        self._first = self._last = -1
        report.files = len(contents.files)

    def check_overlaps(self) -> None:
        """Files of a table without partitions follow each other, so that readers need one at a time."""
        if self._contents.is_partitioned:
            return
        before: StoredFile | None = None
        for file in self._contents.files:
            if file.last_offset < 0:  # the manifests do not say
                continue
            if before is not None and file.first_offset <= before.last_offset:
                text = f"the file overlaps another one, {before.path}"
                self._add("overlap", text, file.path, file.first_offset, before.last_offset)
            if before is None or file.last_offset > before.last_offset:
                before = file

    def check_delete_files(self) -> None:
        if self._contents.delete_files:
            self._report.add(
                Finding(
                    "damaged", f"rows were deleted from the table: it has {self._contents.delete_files} delete files"
                )
            )

    def take(self, group: RowGroup) -> None:
        is_new = group.path != self._path
        if not self._contents.sort_by:
            if not group.is_ordered:
                text = f"rows of row group {group.number} are not in offset order"
                self._add("order", text, group.path, group.first_offset, group.last_offset)
            if not is_new and group.first_offset <= self._last:
                text = f"row group {group.number} begins before the end of the one before"
                self._add("order", text, group.path, group.first_offset, self._last)
        self._first = group.first_offset if is_new else min(self._first, group.first_offset)
        self._last = group.last_offset if is_new else max(self._last, group.last_offset)
        self._path = group.path
        if group.is_last:
            self._compare(group)

    def _compare(self, group: RowGroup) -> None:
        file = self._files.get(group.path)
        if file is None:
            return
        if group.rows_in_file != file.rows:
            text = f"the file has {group.rows_in_file} rows, the table counts {file.rows}"
            self._add("description", text, file.path, self._first, self._last)
        if file.last_offset >= 0 and (file.first_offset, file.last_offset) != (self._first, self._last):
            text = (
                f"the file has the offsets {self._first} to {self._last}, "
                f"the table says {file.first_offset} to {file.last_offset}"
            )
            self._add("description", text, file.path, self._first, self._last)

    def _add(self, kind: Kind, text: str, path: str, first: int, last: int) -> None:
        self._report.add(Finding(kind, text, first, last, path))
