"""Turns OpenDAL's errors into ours.

OpenDAL's error text holds the whole request and response: URLs with upload ids, headers, sometimes the body. Ours says
only what went wrong, without secrets. OpenDAL's errors are not chained to ours, because a traceback would show them.
"""

import errno
import re
from collections.abc import Iterable

from opendal import exceptions

from icestream.config import MASK, mask_text
from icestream.model.errors import (
    IcestreamError,
    InvalidRequestError,
    ObjectExistsError,
    ObjectNotFoundError,
    UnavailableError,
)

FAILURES = (
    exceptions.Error,
    exceptions.Unexpected,
    exceptions.Unsupported,
    exceptions.ConfigInvalid,
    exceptions.NotFound,
    exceptions.PermissionDenied,
    exceptions.IsADirectory,
    exceptions.NotADirectory,
    exceptions.AlreadyExists,
    exceptions.IsSameFile,
    exceptions.ConditionNotMatch,
    exceptions.RateLimited,
    exceptions.RangeNotSatisfied,
    exceptions.Conflict,
    OSError,
)
_MAX_TEXT = 300
_EXISTS = {"ConditionNotMatch", "AlreadyExists"}
_REFUSED = {"PermissionDenied", "ConfigInvalid", "Unsupported", "IsADirectory", "NotADirectory"}
_SYSTEM_KINDS = {
    errno.EEXIST: "AlreadyExists",
    errno.ENOENT: "NotFound",
    errno.EACCES: "PermissionDenied",
    errno.EPERM: "PermissionDenied",
    errno.EROFS: "PermissionDenied",
    errno.EISDIR: "IsADirectory",
    errno.ENOTDIR: "NotADirectory",
}
_REFUSED_STATUS = {"401", "403"}
_REFUSED_TEXT = re.compile(
    r"AuthorizationHeaderMalformed|PermanentRedirect|ExpiredToken|InvalidToken|signing credential"
)
_OUTAGE = re.compile(r"send http request|timeout reached|\bstatus: (?:5\d\d|429)\b")
_NO_OBJECT = {None, "NoSuchKey", "NoSuchVersion", "NoSuchUpload", "BlobNotFound"}
_CODE = re.compile(r'\bcode: "(\w+)"')
_STATUS = re.compile(r"\bstatus: (\d{3})\b")
_URL = re.compile(r"(https?://[^\s?)]*)\?[^\s)]*")
_MESSAGE = re.compile(r'\bmessage: "([^"]+)"')
_WHAT = re.compile(r" => (.+?)(?:, source: |\n|$)")
_WHY = re.compile(r"(?:\nSource:\n\s*|, source: )(.+)")
_REMEDY = "check cloud.root, cloud.region, and the credentials in the settings or the environment"


def to_typed_error(error: BaseException, secrets: Iterable[str], *, operation: str, place: str) -> IcestreamError:
    """Return our error for one of `FAILURES`."""
    kind, text = _kind(error), _text(error)
    for secret in secrets:
        text = text.replace(secret, MASK)
    text = _URL.sub(r"\1", mask_text(text))[:_MAX_TEXT]
    code = _first(_CODE, str(error))
    if kind in _EXISTS:
        return ObjectExistsError("an object of that name exists", operation=operation, place=place)
    if kind == "NotFound" and code in _NO_OBJECT:
        return ObjectNotFoundError("there is no such object", operation=operation, place=place)
    is_refused = kind in _REFUSED or kind == "NotFound" or _first(_STATUS, str(error)) in _REFUSED_STATUS
    if is_refused or _REFUSED_TEXT.search(text):
        reason = f"the object store denies this: {code or text}"
        return InvalidRequestError(reason, operation=operation, place=place, remedy=_REMEDY)
    return UnavailableError(f"the object store failed: {text}", operation=operation, place=place)


def may_be_short(error: BaseException) -> bool:
    """Return whether a read may have failed because the object is too short: whether it is no outage."""
    return _OUTAGE.search(str(error)) is None


def _kind(error: BaseException) -> str:
    """Return OpenDAL's name of the error's kind. Writers raise an `OSError` whose text begins with it."""
    if isinstance(error, OSError):
        if error.errno is None:
            return str(error).partition(" ")[0]
        return _SYSTEM_KINDS.get(error.errno, "Unexpected")
    return type(error).__name__


def _text(error: BaseException) -> str:
    """Return what went wrong, in one line. Of a response only status, code and message: its body may hold anything."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.strerror or str(error)
    text = str(error)
    status = _first(_STATUS, text)
    if status:
        said = (_first(_CODE, text), _first(_MESSAGE, text))
        return ", ".join([f"status {status}", *filter(None, said)])
    return ": ".join(filter(None, (_first(_WHAT, text), _first(_WHY, text)))) or _kind(error)


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match.group(1) if match else None
