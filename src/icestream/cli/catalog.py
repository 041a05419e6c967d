"""`consume --catalog`: a topic's table read through the catalog, with no broker."""

import time
from pathlib import Path
from types import TracebackType
from typing import Self

import click
import pyarrow as pa

from icestream.config import Settings, SettingsError, load_settings
from icestream.model.errors import IcestreamError
from icestream.model.offsets import StartPosition
from icestream.storage import ReadOnlyStorage

_PAUSE_SECONDS = 0.2


def catalog_settings(catalog: str, config_file: Path | None, data: Path | None) -> Settings:
    """The settings, with the catalog at another address if one is given: a REST catalog's or a database's."""
    flags: dict[str, object] = {"data_dir": data}
    if catalog:
        if "://" not in catalog:
            raise click.UsageError(
                f"{catalog!r} is not a catalog's address; leave it out, or give one such as sqlite:///catalog.db"
            )
        flags |= {"catalog.uri": catalog, "catalog.type": "rest" if catalog.startswith("http") else "sql"}
    try:
        return load_settings(config_file, flags)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None


class TableConsumer:
    """Ends at what is committed now, or follows: then it waits for the table, and for a catalog that is away."""

    def __init__(
        self,
        settings: Settings,
        topic: str,
        start: StartPosition,
        *,
        follow: bool,
        max_messages: int | None,
        where: str | None,
    ) -> None:
        self._storage = ReadOnlyStorage(settings)
        self._reader = self._storage.reader(topic, start, where=where)
        self._follow = follow
        self._left = max_messages
        self._pending: list[pa.RecordBatch] = []
        self.ended = False
        self.interruption: IcestreamError | None = None
        """Why the table cannot be read at the moment."""

    def poll(self, timeout: float | None = None) -> pa.RecordBatch | None:
        """The next batch, or None when none came within `timeout` seconds or there are no more (see `ended`)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.ended:
            batch = self._next()
            if batch is not None and batch.num_rows:
                return self._counted(batch)
            if batch is not None:
                continue
            if not self._follow:
                self.ended = True
            elif not self._wait(deadline):
                return None
        return None

    def _next(self) -> pa.RecordBatch | None:
        if not self._pending:
            try:
                if not self._follow:
                    _ = self._reader.schema  # raises if there is no table
                self._pending = self._reader.read()[::-1]
                self.interruption = None
            except IcestreamError as error:
                if not (self._follow and error.retryable):
                    raise
                self.interruption = error
                time.sleep(_PAUSE_SECONDS)
        return self._pending.pop() if self._pending else None

    def _wait(self, deadline: float | None) -> bool:
        """Whether there is time left."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return False
        try:
            self._reader.wait(left)
        except IcestreamError as error:
            if not error.retryable:
                raise
            time.sleep(_PAUSE_SECONDS if left is None else min(left, _PAUSE_SECONDS))
        return True

    def _counted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
            self.ended = self._left == 0
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()
        self._storage.close()


def need_shared_catalog(settings: Settings) -> None:
    """Refuse a catalog in memory: a command would find its own, which is empty, and what it wrote would be gone."""
    if settings.catalog.type == "memory":
        raise click.ClickException(
            "catalog.type is 'memory', and a catalog in memory cannot be shared with another process: "
            "set catalog.type to sql, rest or glue"
        )
