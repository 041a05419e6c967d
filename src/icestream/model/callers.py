"""Who calls, and what they may touch.

A tenant is a namespace. A token stands for one namespace or, given out to `*`, for everything. Where no tokens are
given out, everybody may do everything.

Tokens are kept and looked up as keyed digests, with a key that this process alone has and never shows. So the time of a
look-up does not depend on how much of a guess is right, and what is in memory is no token.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from icestream.model.errors import PermissionDeniedError, UnauthenticatedError
from icestream.model.names import TopicName, check_part

ALL_NAMESPACES = "*"
"""In place of a namespace: whoever has this token may do everything."""

TOKEN_VARIABLE = "ICESTREAM_TOKEN"  # noqa: S105 - a name, not a secret
"""Where clients take a token from that they are not given otherwise."""

_BEARER = "bearer"


@dataclass(frozen=True)
class Caller:
    """One who was let in."""

    namespace: str | None = None
    """The only one that it may touch; None: it may do everything."""

    @property
    def may_do_everything(self) -> bool:
        return self.namespace is None

    def may(self, namespace: str) -> bool:
        return self.namespace is None or self.namespace == namespace

    def check(self, namespace: str, *, operation: str) -> None:
        """Raise unless it may touch this namespace. What the error says does not depend on what is in there."""
        if not self.may(namespace):
            raise PermissionDeniedError(
                "the token is another namespace's",
                operation=operation,
                place=namespace,
                remedy=f"use one of the namespace, or of {ALL_NAMESPACES}",
            )

    def check_topic(self, topic: TopicName | str, *, operation: str) -> TopicName:
        """The name, if it is one, and of a topic that the caller may touch."""
        name = TopicName.parse(topic)
        self.check(name.namespace, operation=operation)
        return name

    def check_everything(self, *, operation: str) -> None:
        """Raise unless it may do everything."""
        if not self.may_do_everything:
            raise PermissionDeniedError(
                "this is not for one namespace's token", operation=operation, remedy=f"use one of {ALL_NAMESPACES}"
            )


EVERYTHING = Caller()
"""Who may do everything."""


class Callers:
    """Those who have a token, from pairs of a namespace, or `*`, and a token; without any pair, everybody."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._key = secrets.token_bytes(32)
        self._by_digest: dict[bytes, Caller] = {}
        for namespace, token in pairs:
            if namespace == ALL_NAMESPACES:
                caller = EVERYTHING
            else:
                caller = Caller(check_part(namespace, what="namespace for a token"))
            self._by_digest[self._digest(token)] = caller

    @property
    def are_all(self) -> bool:
        """Whether no token is needed."""
        return not self._by_digest

    @property
    def namespaces(self) -> set[str]:
        """Those that have a token of their own."""
        return {caller.namespace for caller in self._by_digest.values() if caller.namespace is not None}

    def identify(self, authorization: str | None, *, operation: str) -> Caller:
        """Who sends a request with this `Authorization` header."""
        if self.are_all:
            return EVERYTHING
        scheme, _, token = (authorization or "").partition(" ")
        caller = self._by_digest.get(self._digest(token.strip())) if scheme.lower() == _BEARER else None
        if caller is None:
            raise UnauthenticatedError(
                "the token is not known" if authorization else "a token is needed",
                operation=operation,
                remedy=f"give one with --token or {TOKEN_VARIABLE}; other clients send the header authorization: "
                "Bearer TOKEN",
            )
        return caller

    def _digest(self, token: str) -> bytes:
        return blake2b(token.encode(errors="surrogateescape"), key=self._key).digest()
