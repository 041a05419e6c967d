"""References to environment variables in a file's values.

`${NAME}` is the variable's value, `${NAME:-text}` is `text` when it is unset or empty, and `$${` is a plain `${`.
"""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_BODY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


class ValueProblem(Exception):  # noqa: N818  it becomes a Problem, and says so
    """One value of a file cannot be used; the text is a phrase that follows the key's name."""


def expand(text: str, environ: Mapping[str, str]) -> str:
    """`text` with each reference replaced."""

    def replacement(match: re.Match[str]) -> str:
        if match.group() == "$${":
            return "${"
        body = _BODY.fullmatch(match.group(1) or "")
        if body is None:
            raise ValueProblem("has a ${ that is no reference: write ${NAME}, ${NAME:-default}, or $${ for a plain ${")
        name, default = body.groups()
        value = environ.get(name)
        if default is not None:
            return value or str(default)
        if value is None:
            raise ValueProblem(
                f"refers to the environment variable {name}, which is not set: set it, or write ${{{name}:-default}}"
            )
        return value

    return _REFERENCE.sub(replacement, text)
