"""What the uploader, the reader and retention need of the records about objects. The metadata store has them."""

from typing import Protocol

from icestream.cloud.descriptor import Head, ObjectDescriptor


class Descriptions(Protocol):
    """The objects of one topic's stream, to be looked at. Thread-safe."""

    def get(self, first_offset: int) -> ObjectDescriptor | None:
        """The object that begins at an offset."""

    def objects(self) -> list[ObjectDescriptor]:
        """All of the stream's, by offset; without their inline indexes, which `get` has."""


class Registry(Descriptions, Protocol):
    """The objects of one topic's stream. Thread-safe. Raises as the metadata store does.

    Every change is one transaction on the head that was last read or written here. Where the head has changed since,
    nothing is changed, and `StaleEpochError` is raised if another owner has taken the topic over; else a retryable
    `ConflictError`: an earlier change, whose outcome was not known, has happened.
    """

    def head(self) -> Head | None:
        """As the store has it now; None where the topic has none, or one of another stream."""

    @property
    def owned(self) -> Head | None:
        """As this owner wrote it last; None before the claim, or when the last outcome is not known."""

    def claim(self, head: Head) -> Head:
        """Begin to own the objects: the first head of a topic, or one with a higher epoch, or the same epoch again.

        Returns the head as it was written. How far the topic is does not change by that: a head that has moved
        meanwhile is a retryable `ConflictError`. What others have reserved meanwhile stays reserved.
        """

    def refresh(self) -> Head:
        """As the store has it, to go on with it; raises `StaleEpochError` unless this owner wrote it."""

    def publish(self, descriptor: ObjectDescriptor, head: Head) -> None:
        """Add an object and move the head, both or none."""

    def update(self, head: Head) -> None:
        """Replace the head, with no change of objects."""

    def remove(self, descriptors: list[ObjectDescriptor], head: Head) -> None:
        """Take objects off the record, oldest first, and move the head, all or none."""
