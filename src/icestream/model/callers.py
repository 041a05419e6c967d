"""Callers and their permissions.

A tenant is a namespace. A token gives access to one namespace or, if it is a token of `*`, to all. Without tokens there
is no authentication: every client has full access.

Tokens are kept and looked up as keyed digests, with a random key of this process. So the time of a look-up does not
depend on how much of a guess is right, and memory holds no token.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from icestream.model.errors import PermissionDeniedError, UnauthenticatedError
from icestream.model.names import TopicName, check_part

ALL_NAMESPACES = "*"
"""In place of a namespace: the token gives full access."""

TOKEN_VARIABLE = "ICESTREAM_TOKEN"  # noqa: S105 - a name, not a secret
"""The environment variable from which clients take a token by default."""

_BEARER = "bearer"


@dataclass(frozen=True)
class Caller:
    """An authenticated caller."""

    namespace: str | None = None
    """The only namespace that it may access; None: full access."""

    @property
    def may_do_everything(self) -> bool:
        return self.namespace is None

    def may(self, namespace: str) -> bool:
        return self.namespace is None or self.namespace == namespace

    def check(self, namespace: str, *, operation: str) -> None:
        """Raise unless it may access this namespace. The error does not reveal what the namespace contains."""
        if not self.may(namespace):
            raise PermissionDeniedError(
                "the token is for another namespace",
                operation=operation,
                place=namespace,
                remedy=f"use a token of this namespace, or of {ALL_NAMESPACES}",
            )

    def check_topic(self, topic: TopicName | str, *, operation: str) -> TopicName:
        """Return the parsed name. Raise if it is not one, or if the caller may not access the topic."""
        name = TopicName.parse(topic)
        self.check(name.namespace, operation=operation)
        return name

    def check_everything(self, *, operation: str) -> None:
        """Raise unless it has full access."""
        if not self.may_do_everything:
            raise PermissionDeniedError(
                "this needs full access", operation=operation, remedy=f"use a token of {ALL_NAMESPACES}"
            )


FULL_ACCESS = Caller()
"""A caller with full access."""


class Callers:
    """The callers with a token, from pairs of a namespace, or `*`, and a token. Without pairs, every caller is one."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._key = secrets.token_bytes(32)
        self._by_digest: dict[bytes, Caller] = {}
        for namespace, token in pairs:
            if namespace == ALL_NAMESPACES:
                caller = FULL_ACCESS
            else:
                caller = Caller(check_part(namespace, what="namespace for a token"))
            self._by_digest[self._digest(token)] = caller

    @property
    def has_no_authentication(self) -> bool:
        """Whether there is no authentication."""
        return not self._by_digest

    @property
    def namespaces(self) -> set[str]:
        """The namespaces that have a token."""
        return {caller.namespace for caller in self._by_digest.values() if caller.namespace is not None}

    def identify(self, authorization: str | None, *, operation: str) -> Caller:
        """Return the caller of a request with this `Authorization` header."""
        if self.has_no_authentication:
            return FULL_ACCESS
        scheme, _, token = (authorization or "").partition(" ")
        caller = self._by_digest.get(self._digest(token.strip())) if scheme.lower() == _BEARER else None
        if caller is None:
            raise UnauthenticatedError(
                "the token is unknown" if authorization else "a token is needed",
                operation=operation,
                remedy=f"give a token with --token or {TOKEN_VARIABLE}; other clients send the header authorization: "
                "Bearer TOKEN",
            )
        return caller

    def _digest(self, token: str) -> bytes:
        return blake2b(token.encode(errors="surrogateescape"), key=self._key).digest()
