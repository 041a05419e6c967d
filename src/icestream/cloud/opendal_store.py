"""Object stores through OpenDAL."""

from icestream.cloud.store import ObjectStore
from icestream.config import CloudSettings


def open_object_store(settings: CloudSettings, prefix: str) -> ObjectStore:
    """The store that the settings name; names of objects begin with the prefix."""
    raise NotImplementedError
