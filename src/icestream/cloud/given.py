"""Descriptions of objects that are at hand, in place of a registry."""

from collections.abc import Iterable

from icestream.cloud.descriptor import ObjectDescriptor


class Given:
    def __init__(self, descriptors: Iterable[ObjectDescriptor]) -> None:
        self._by_offset = {descriptor.first_offset: descriptor for descriptor in descriptors}

    def get(self, first_offset: int) -> ObjectDescriptor | None:
        return self._by_offset.get(first_offset)

    def objects(self) -> list[ObjectDescriptor]:
        return [descriptor for _, descriptor in sorted(self._by_offset.items())]
