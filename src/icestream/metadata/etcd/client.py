"""Asks etcd, and asks again: on the next endpoint, with a pause after each round, until the time is up."""

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import grpc

from icestream.metadata.etcd.calls import Calls, Metadata
from icestream.metadata.etcd.endpoints import Endpoints
from icestream.metadata.etcd.errors import Failure, error_for, failure_of, text_of
from icestream.metadata.etcd.options import EtcdOptions
from icestream.metadata.etcd.tokens import Tokens
from icestream.model.errors import ClosedError, UnavailableError

Result = TypeVar("Result")
Send = Callable[[Calls, float, Metadata], Result]

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_FIRST_ATTEMPT_SECONDS = 1.0
_MOST_TOKENS_PER_CALL = 3


class LostAnswerError(Exception):
    """etcd may or may not have done what was asked."""


class Deadline:
    """The time for a call, and for each attempt at it.

    An endpoint that says nothing must leave time for the others, and a slow etcd must have time to answer: so the
    first attempt is short, and each is twice as long as the last that got no answer.
    """

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds
        self._attempt_seconds = _FIRST_ATTEMPT_SECONDS

    @property
    def left_seconds(self) -> float:
        return max(0.0, self._at - time.monotonic())

    @property
    def attempt_seconds(self) -> float:
        """How long the next attempt may take."""
        return min(self.left_seconds, self._attempt_seconds)

    def unanswered(self) -> None:
        self._attempt_seconds *= 2


class EtcdClient:
    """Thread-safe."""

    def __init__(self, options: EtcdOptions) -> None:
        self.place = options.place
        self.endpoints = Endpoints(options)
        self.tokens = Tokens(options)
        self._timeout_seconds = options.timeout_seconds
        self._closed = threading.Event()

    def deadline(self) -> Deadline:
        return Deadline(self._timeout_seconds)

    def call(
        self,
        operation: str,
        send: Send[Result],
        *,
        place: str = "",
        deadline: Deadline | None = None,
        repeatable: bool = True,
    ) -> Result:
        """What etcd answers to `send`. What is not `repeatable` raises LostAnswerError when its answer is lost."""
        deadline = deadline or self.deadline()
        failures = tokens = 0
        while True:
            self.check_open(operation)
            endpoint = self.endpoints.preferred()
            metadata: Metadata | None = None
            try:
                metadata = self.tokens.metadata(endpoint.calls, deadline.attempt_seconds)
                return send(endpoint.calls, deadline.attempt_seconds, metadata)
            except ValueError:  # how gRPC refuses a call on a closed channel
                self.check_open(operation)
                raise
            except grpc.RpcError as error:
                self.check_open(operation)
                failure = failure_of(error)
                if failure is Failure.BAD_TOKEN and self.tokens.can_renew and tokens < _MOST_TOKENS_PER_CALL:
                    tokens += 1
                    if metadata is not None:
                        self.tokens.refused(metadata)
                    continue
                if failure in (Failure.FINAL, Failure.BAD_TOKEN):
                    raise error_for(error, operation=operation, place=place or self.place) from error
                self.endpoints.failed(endpoint)
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    deadline.unanswered()
                if failure is Failure.LOST and metadata is not None and not repeatable:
                    raise LostAnswerError(text_of(error)) from error
                failures += 1
                self.pause(failures, deadline.left_seconds)
                if not deadline.left_seconds:
                    raise UnavailableError(
                        f"etcd does not answer: {text_of(error)}",
                        operation=operation,
                        place=self.place,
                        remedy="try again when etcd can be reached",
                    ) from error

    def pause(self, failures: int, longest_seconds: float = _LONGEST_PAUSE_SECONDS) -> None:
        """Wait after a failure that leaves no endpoint untried, longer each time; closing ends it."""
        rounds, rest = divmod(failures, len(self.endpoints))
        if rest == 0:
            seconds = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(rounds - 1, 10))
            spread = random.uniform(0.5, 1.0)  # noqa: S311  # it keeps clients from coming all at once, and guards nothing
            self._closed.wait(min(longest_seconds, seconds * spread))

    def check_open(self, operation: str) -> None:
        if self._closed.is_set():
            raise ClosedError("the metadata store is closed", operation=operation, place=self.place)

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def refuse_calls(self) -> None:
        """The first half of closing: calls raise ClosedError, those that wait wake up."""
        self._closed.set()

    def close(self) -> None:
        self.refuse_calls()
        self.endpoints.close()
