"""Writes one object through OpenDAL: in one request if it is small, else in parts.

The store itself sees to it that an object is there wholly or not at all, and that of several writers one wins: the last
request is conditional on there being no object. That request may be repeated because its answer was lost, and then
finds the object that it made itself. So each writer leaves a token in the object's metadata, and knows its own.
"""

import uuid

import opendal
from opendal import exceptions
from opendal.file import File
from opendal.options import WriteKwargs

from icestream.cloud.opendal_errors import FAILURES, typed
from icestream.model.errors import (
    ClosedError,
    IcestreamError,
    ObjectExistsError,
    ObjectNotFoundError,
    UnavailableError,
)
from icestream.model.frame_bytes import Bytes

_TOKEN = "writer"  # plain letters: not every store takes others in the names of metadata  # noqa: S105


class OpendalWriter:
    """For one thread. At most `parallel + 1` parts are in memory."""

    def __init__(
        self,
        operator: opendal.Operator,
        path: str,
        place: str,
        *,
        part_bytes: int,
        parallel: int,
        secrets: tuple[str, ...],
    ) -> None:
        self._operator = operator
        self._path = path
        self._place = place
        self._part_bytes = part_bytes
        self._secrets = secrets
        self._token = uuid.uuid4().hex
        self._written = 0
        self._state: File | IcestreamError | None
        options: WriteKwargs = {"chunk": part_bytes, "concurrent": parallel, "if_not_exists": True}
        if operator.capability().write_with_user_metadata:
            options["user_metadata"] = {_TOKEN: self._token}
        try:
            self._state = operator.open(path, "wb", **options)
        except FAILURES as error:
            raise self._typed(error, "begin object") from None

    def write(self, data: Bytes, /) -> None:
        file = self._file()
        with memoryview(data).cast("B") as view:
            for start in range(0, len(view), self._part_bytes):
                piece = bytes(view[start : start + self._part_bytes])
                try:
                    file.write(piece)
                except FAILURES as error:
                    # OpenDAL would go on without what it could not send, so it must not get another call.
                    self._state = self._typed(error, "write object")
                    raise self._state from None
                self._written += len(piece)

    def finish(self) -> None:
        file, self._state = self._file(), None
        try:
            file.close()
        except FAILURES as error:
            self._settle(self._typed(error, "finish object"))

    def abort(self) -> None:
        """OpenDAL cannot call off an upload in parts: S3 keeps them, unseen, until the bucket's rules remove them."""
        self._state = None

    def _file(self) -> File:
        if isinstance(self._state, IcestreamError):
            raise self._state
        if self._state is None:
            raise ClosedError("the object was finished or given up", operation="write object", place=self._place)
        return self._state

    def _settle(self, error: IcestreamError) -> None:
        """What it means that the last request failed: see what is there."""
        try:
            found = self._operator.stat(self._path)
        except exceptions.NotFound:
            if isinstance(error, ObjectExistsError | ObjectNotFoundError):
                reason = "the store has lost the upload, or has another one of that name under way"
                raise UnavailableError(reason, operation="finish object", place=self._place) from None
        except FAILURES:
            pass
        else:
            if (found.user_metadata or {}).get(_TOKEN) == self._token and found.content_length == self._written:
                return  # only the answer got lost
            if isinstance(error, ObjectNotFoundError):
                error = self._typed(exceptions.AlreadyExists(), "finish object")
        raise error from None

    def _typed(self, error: BaseException, operation: str) -> IcestreamError:
        return typed(error, self._secrets, operation=operation, place=self._place)
