"""Two words that SQL keeps for itself: `default`, a namespace, and `offset`, a column of every topic.

`SELECT max(offset) FROM default.events` is what everybody writes first. The words are put between quotes where they
can only be names: `default` before a dot, and `offset` where no row count of `OFFSET n` follows it.
"""

import re
from itertools import pairwise

import duckdb

_Token = tuple[int, str]
_ENDS_A_VALUE = frozenset(
    re.findall(
        r"\w+",
        "from as in is not between and or like ilike similar collate when then else end asc desc nulls where group "
        "having window qualify order limit union except intersect filter over",
    )
)


def quote_names(sql: str) -> str:
    """The same statement with those words in quotes."""
    text = sql.encode()
    tokens = _tokens(text)
    made, done = b"", 0
    for (start, word), (_, following) in pairwise([*tokens, (len(text), "")]):
        if (word == "default" and following == ".") or (word == "offset" and _is_column(following)):
            made += text[done:start] + b'"' + word.encode() + b'"'
            done = start + len(word)
    return (made + text[done:]).decode()


def _is_column(following: str) -> bool:
    """Whether what follows on `offset` cannot begin the number of an `OFFSET` clause."""
    return following in _ENDS_A_VALUE or not following or following[0] in ",);=<>!+-*/%:]|&^."


def _tokens(text: bytes) -> list[_Token]:
    """Where each token begins, and in lower case what it begins with; comments are none."""
    starts = [start for start, _ in duckdb.tokenize(text.decode())]
    found = []
    for start, end in pairwise([*starts, len(text)]):
        words = text[start:end].decode(errors="replace").split(maxsplit=1)
        found.append((start, words[0].lower() if words else ""))
    return found
