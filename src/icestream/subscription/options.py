"""The options of a subscription, checked against its topic."""

from typing import Any, Self

import pyarrow as pa

from icestream.model.enums import SubscriptionType
from icestream.model.errors import InvalidRequestError
from icestream.model.filters import Filter
from icestream.model.messages import KEY
from icestream.model.names import TopicName, check_part
from icestream.protocol.parsing import convert
from icestream.protocol.subscribe import SubscriptionAttributes

_OPERATION = "subscription options"


class SubscriptionOptions(SubscriptionAttributes, frozen=True, kw_only=True):
    """The options of a subscription, with what the broker makes of them."""

    def check(self, topic: TopicName, name: str, schema: pa.Schema) -> None:
        """Raise unless a subscription of this topic can have these options."""
        if not isinstance(self.type, SubscriptionType):
            raise _refused(f"{self.type!r} is not a type of subscription", f"use {SubscriptionType.choices()}")
        self.from_json(self.to_json())
        if self.filter is not None:
            Filter.parse(self.filter).check(schema)
        if self.type is SubscriptionType.KEY_SHARED:
            _check_has_key(schema)
        if self.dead_letters_of(topic, name) == topic:
            raise _refused("a topic cannot be its own dead-letter topic", "name another")

    def dead_letters_of(self, topic: TopicName, name: str) -> TopicName | None:
        """Return the topic for messages that failed too often; None: there is none."""
        if self.dead_letter_topic is not None:
            return TopicName.parse(self.dead_letter_topic)
        if self.max_redeliveries is None:
            return None
        derived = f"{topic.name}-{name}-dead-letters"
        return TopicName(
            topic.namespace, check_part(derived, what="dead-letter topic; give one with dead_letter_topic")
        )

    @classmethod
    def from_json(cls, fields: Any) -> Self:
        """Return options from plain data; what it leaves out has its default."""
        return convert(fields, cls, operation=_OPERATION)


def _refused(message: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(message, operation=_OPERATION, remedy=remedy)


def _check_has_key(schema: pa.Schema) -> None:
    """Raise unless messages of this schema have a key that can be hashed."""
    index = schema.get_field_index(KEY)
    if index < 0 or pa.types.is_nested(schema.field(index).type):
        raise InvalidRequestError(
            "a key-shared subscription needs a column `key` of a plain type",
            operation=_OPERATION,
            remedy="add the column to the topic's schema, or use type shared",
        )
