"""Who may come in."""

import re
from typing import Any, Self

from pydantic import Field, model_validator

from icestream.config.fields import Secret, Section, refuse

MIN_TOKEN_LENGTH = 8
_TOKEN = re.compile(r"[!-~]+")
"""What a header can carry as it is."""
_NAMESPACE = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}", re.ASCII)


class AuthSettings(Section):
    """Tokens, and whose they are. Used by every door."""

    tokens: Secret = Field(
        default=None,
        description="Who may come in: `acme=TOKEN globex=TOKEN`, separated by white space or commas. Each token is "
        "for one namespace, which may have several; one of `*` is for everything. Unset, no token is needed.",
    )

    @property
    def token_pairs(self) -> list[tuple[str, str]]:
        """Namespaces, or `*`, and tokens."""
        text = self.tokens.get_secret_value() if self.tokens is not None else ""
        pairs = [entry.partition("=") for entry in re.split(r"[\s,]+", text) if entry]
        return [(namespace, token) for namespace, _, token in pairs]

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_not_unset(cls, values: Any) -> Any:
        """A variable that somebody forgot to set must not open every door."""
        if isinstance(values, dict) and values.get("tokens") == "":
            refuse("tokens", "is empty: leave it out where anybody may do everything")
        return values

    @model_validator(mode="after")
    def _tokens_can_be_told_apart(self) -> Self:
        pairs = self.token_pairs
        if self.tokens is not None and not pairs:
            refuse("tokens", "names no token: leave it out where anybody may do everything")
        if any(not namespace or len(token) < MIN_TOKEN_LENGTH for namespace, token in pairs):
            refuse("tokens", f"takes entries such as acme=TOKEN, with tokens of {MIN_TOKEN_LENGTH} characters or more")
        if not all(_NAMESPACE.fullmatch(namespace) for namespace, _ in pairs):
            refuse("tokens", "has an entry for what is no namespace: letters, digits and _ - . after the first, or *")
        if not all(_TOKEN.fullmatch(token) for _, token in pairs):
            refuse("tokens", "has a token with other characters than those of ASCII that can be seen")
        if len({token for _, token in pairs}) < len(pairs):
            refuse("tokens", "has the same token twice")
        return self
