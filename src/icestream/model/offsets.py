"""Where a reader starts."""

from typing import Any, NamedTuple, Self

from icestream.model.errors import InvalidRequestError


class StartPosition(NamedTuple):
    """`earliest`, `latest`, an offset, or the first message published at or after a time."""

    kind: str
    value: int = 0

    @classmethod
    def earliest(cls) -> Self:
        return cls("earliest")

    @classmethod
    def latest(cls) -> Self:
        return cls("latest")

    @classmethod
    def offset(cls, offset: int) -> Self:
        if offset < 0:
            raise InvalidRequestError(f"an offset is 0 or more, not {offset}", operation="start position")
        return cls("offset", offset)

    @classmethod
    def timestamp(cls, time_us: int) -> Self:
        return cls("timestamp", time_us)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        match value:
            case None | "earliest":
                return cls.earliest()
            case "latest":
                return cls.latest()
            case bool():
                pass
            case int():
                return cls.offset(value)
            case {"time_us": int(time_us)} if len(value) == 1:
                return cls.timestamp(time_us)
        raise InvalidRequestError(
            f"{value!r} is not a start position",
            operation="start position",
            remedy='use "earliest", "latest", an offset or {"time_us": …}',
        )

    def to_json(self) -> Any:
        match self.kind:
            case "offset":
                return self.value
            case "timestamp":
                return {"time_us": self.value}
        return self.kind
