"""A subscription as the metadata store keeps it: JSON under `keys.subscription_progress`."""

import json
from dataclasses import dataclass
from typing import Any, Self

from icestream.metadata import keys
from icestream.model.errors import DamagedError, IcestreamError
from icestream.model.names import TopicName
from icestream.subscription.options import SubscriptionOptions
from icestream.subscription.progress import Progress

_VERSION = 1


@dataclass(frozen=True)
class SubscriptionRecord:
    topic: TopicName
    name: str
    stream_id: str
    """A topic that was deleted and made again is another stream."""
    options: SubscriptionOptions
    progress: Progress
    created_us: int
    redeliveries: int = 0
    dead_letters: int = 0
    writer: str = ""
    """Who wrote it last: tells a repeated write whose answer was lost from one of somebody else."""

    @property
    def key(self) -> str:
        return keys.subscription_progress(self.name, self.topic)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "version": _VERSION,
                "topic": str(self.topic),
                "subscription": self.name,
                "stream_id": self.stream_id,
                "options": self.options.to_json(),
                "progress": self.progress.to_json(),
                "created_us": self.created_us,
                "redeliveries": self.redeliveries,
                "dead_letters": self.dead_letters,
                "writer": self.writer,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_bytes(cls, value: bytes, key: str) -> Self:
        try:
            fields = _known(json.loads(value))
            return cls(
                topic=TopicName.parse(fields["topic"]),
                name=fields["subscription"],
                stream_id=fields["stream_id"],
                options=SubscriptionOptions.from_json(fields["options"]),
                progress=Progress.from_json(fields["progress"]),
                created_us=int(fields["created_us"]),
                redeliveries=int(fields["redeliveries"]),
                dead_letters=int(fields["dead_letters"]),
                writer=str(fields["writer"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, IcestreamError) as error:
            raise DamagedError(
                f"the record of a subscription cannot be read: {error}",
                operation="load subscription",
                place=key,
                remedy="read it with the version of icestream that wrote it, or delete the key to start anew",
            ) from error


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    if fields["version"] != _VERSION:
        raise ValueError(f"version {fields['version']!r} is not known")
    return fields
