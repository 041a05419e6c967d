"""What a subscription is told when it is made, and keeps."""

from dataclasses import asdict, dataclass
from typing import Any, Self

import pyarrow as pa

from icestream.model.enums import SubscriptionType
from icestream.model.errors import InvalidRequestError
from icestream.model.filters import Filter
from icestream.model.names import TopicName, check_part
from icestream.subscription.key_slots import check_has_key

MAX_DELAY_MS = 86_400_000 * 30
MAX_REDELIVERIES = 10_000
_OPERATION = "subscription options"


@dataclass(frozen=True)
class SubscriptionOptions:
    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    filter: str | None = None
    """An SQL condition; messages that do not match count as acknowledged."""
    ack_timeout_ms: int | None = None
    """A message that is not acknowledged for so long is delivered again; None: only when its consumer ends."""
    nack_delay_ms: int = 1_000
    """When a refused message comes again, if the refusal does not say."""
    max_redeliveries: int | None = None
    """A message that was refused, or timed out, more often goes to the dead-letter topic; None: never."""
    dead_letter_topic: str | None = None
    """By default `{namespace}/{topic}-{subscription}-dead-letters`."""

    def check(self, topic: TopicName, name: str, schema: pa.Schema) -> None:
        """Raise unless a subscription of this topic can have these options."""
        if not isinstance(self.type, SubscriptionType):
            raise _refused(f"{self.type!r} is not a type of subscription", f"use {SubscriptionType.choices()}")
        _check_between("nack_delay_ms", self.nack_delay_ms, 0, MAX_DELAY_MS)
        if self.ack_timeout_ms is not None:
            _check_between("ack_timeout_ms", self.ack_timeout_ms, 1, MAX_DELAY_MS)
        if self.max_redeliveries is not None:
            _check_between("max_redeliveries", self.max_redeliveries, 0, MAX_REDELIVERIES)
        if self.filter is not None:
            Filter.parse(self.filter).check(schema)
        if self.type is SubscriptionType.KEY_SHARED:
            check_has_key(schema)
        if self.dead_letters_of(topic, name) == topic:
            raise _refused("a topic cannot be its own dead-letter topic", "name another")

    def dead_letters_of(self, topic: TopicName, name: str) -> TopicName | None:
        """Where messages go that were redelivered too often; None: nowhere."""
        if self.dead_letter_topic is not None:
            return TopicName.parse(self.dead_letter_topic)
        if self.max_redeliveries is None:
            return None
        derived = f"{topic.name}-{name}-dead-letters"
        return TopicName(
            topic.namespace, check_part(derived, what="dead-letter topic; give one with dead_letter_topic")
        )

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in (asdict(self) | {"type": self.type.value}).items() if value is not None}

    @classmethod
    def from_json(cls, fields: Any) -> Self:
        """Options from what a request or a record says; what it leaves out is the default."""
        if not isinstance(fields, dict):
            raise _refused(f"{fields!r:.80} are not options", "use a JSON object")
        if unknown := sorted(set(fields) - set(cls.__dataclass_fields__)):
            raise _refused(
                f"unknown options {', '.join(map(str, unknown))}", f"use {', '.join(cls.__dataclass_fields__)}"
            )
        given = dict(fields)
        if "type" in given:
            given["type"] = SubscriptionType.parse(given["type"], operation=_OPERATION)
        for key in ("filter", "dead_letter_topic"):
            if not isinstance(given.get(key), str | None):
                raise _refused(f"{key} is text, not {given[key]!r:.80}", "")
        for key in ("ack_timeout_ms", "nack_delay_ms", "max_redeliveries"):
            value = given.get(key)
            if value is None:
                given.pop(key, None)
            elif isinstance(value, bool) or not isinstance(value, int):
                raise _refused(f"{key} is a whole number, not {value!r:.80}", "")
        return cls(**given)


def _check_between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise _refused(f"{name} is {low} to {high}, not {value}", "")


def _refused(message: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(message, operation=_OPERATION, remedy=remedy)
