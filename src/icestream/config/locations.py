"""Places where files are put, compared: a directory, relative or not, or a URI."""

from pathlib import Path

_SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
_LOCAL = "file"


def is_within(location: str, folder: str) -> bool:
    """Whether a location is a folder, or lies somewhere in it."""
    outer = _parts(folder)
    return _parts(location)[: len(outer)] == outer


def first_below(location: str, folder: str) -> str | None:
    """Of a location in a folder, the name right below the folder; None for the folder itself and for others."""
    inner, depth = _parts(location), len(_parts(folder))
    return inner[depth] if is_within(location, folder) and len(inner) > depth else None


def _parts(location: str) -> tuple[str, ...]:
    """The store, and the names on the way down from there."""
    scheme, separator, path = location.partition("://")
    if not separator:
        scheme, path = _LOCAL, location
    scheme = scheme.lower()
    if scheme == _LOCAL:
        path = str(Path(path).resolve())  # links and `..` must not hide that two places are one
    return (_SAME_STORE.get(scheme, scheme), *(part for part in path.split("/") if part))
