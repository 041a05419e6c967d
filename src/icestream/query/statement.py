"""What a query asks: a single SELECT, read by the parser that will run it, and the tables that it names."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import duckdb

from icestream.model.errors import InvalidRequestError, TooLargeError

# --------------------
# Two words that SQL keeps for itself: `default`, a namespace, and `offset`, a column of every topic.
#
# `SELECT max(offset) FROM default.events` is what everybody writes first. The words are put between quotes where they
# can only be names: `default` before a dot, and `offset` where no row count of `OFFSET n` follows it.


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


MAX_TEXT = 100_000
MAX_TABLES = 64
MAX_NESTED = 8
"""Of queries and lambdas inside expressions. DuckDB plans these, and joins, in time that grows fast with their number,
and while it plans it cannot be interrupted."""
OPERATION = "sql"
_EXPLAIN = re.compile(r"\s*explain\s+(analyze\s+)?", re.IGNORECASE)
_ALLOWED_SOURCES = frozenset({"range", "generate_series", "unnest", "repeat", "json_each", "json_tree"})
"""Functions that make rows out of their arguments alone. The others look at files, settings and memory."""
_REFUSED_FUNCTIONS = frozenset({"write_log", "json_execute_serialized_sql", "query", "query_table"})
_TABLES = ("BASE_TABLE", "TABLE_FUNCTION")
_NESTING = ("SUBQUERY", "LAMBDA")
_REMEDY = "send one SELECT over topics, such as SELECT count(*) FROM default.events"


class TableName(NamedTuple):
    catalog: str
    schema: str
    name: str


class Statement(NamedTuple):
    sql: str
    """As DuckDB is to run it."""
    tables: frozenset[TableName]
    with_names: frozenset[str]
    """What the statement's own WITH clauses define, in lower case."""


def parse(connection: duckdb.DuckDBPyConnection, text: str) -> Statement:
    """Raises `InvalidRequestError` unless the text is one statement that only selects."""
    if len(text) > MAX_TEXT:
        raise TooLargeError(f"a query has at most {MAX_TEXT} characters, not {len(text)}", operation=OPERATION)
    if "\0" in text:
        raise _refused("a query has no zero bytes")
    try:
        sql = quote_names(text)
        select = _EXPLAIN.sub("", sql, count=1) if _EXPLAIN.match(sql) else sql
        (answer,) = connection.execute("SELECT json_serialize_sql(?)", [select]).fetchone() or ("{}",)
        nodes = list(_nodes(_single_select(json.loads(answer))))
    except UnicodeError:
        raise _refused("the query is not text") from None
    except RecursionError:
        raise TooLargeError("the query is nested too deep", operation=OPERATION) from None
    for node in nodes:
        _check(node)
    if sum(node.get("type") in _TABLES for node in nodes) > MAX_TABLES:
        raise TooLargeError(f"a query names at most {MAX_TABLES} tables", operation=OPERATION)
    tables = frozenset(
        TableName(node["catalog_name"], node["schema_name"], node["table_name"])
        for node in nodes
        if node.get("type") == "BASE_TABLE"
    )
    return Statement(sql, tables, frozenset(_with_names(nodes)))


def _single_select(parsed: dict[str, Any]) -> Any:
    if parsed.get("error"):
        if parsed.get("error_type") == "parser":
            raise _refused(str(parsed.get("error_message")).partition("\n")[0])
        raise _refused("only a SELECT can be run here")
    statements = parsed.get("statements") or []
    if len(statements) != 1:
        raise _refused(f"a query is one statement, not {len(statements)}")
    return statements[0]


def _nodes(tree: Any, nested: int = 0) -> Iterator[dict[str, Any]]:
    """Every object of the parsed statement."""
    if isinstance(tree, dict):
        nested += tree.get("class") in _NESTING
        if nested > MAX_NESTED:
            raise TooLargeError(f"queries and lambdas are nested at most {MAX_NESTED} deep", operation=OPERATION)
        yield tree
        for part in tree.values():
            yield from _nodes(part, nested)
    elif isinstance(tree, list):
        for part in tree:
            yield from _nodes(part, nested)


def _check(node: dict[str, Any]) -> None:
    """Raise if a part of the statement does more than compute over the tables that it names."""
    match node.get("type"):
        case "TABLE_FUNCTION":
            name = str((node.get("function") or {}).get("function_name")).lower()
            if name not in _ALLOWED_SOURCES:
                raise _refused(f"{name}() cannot be read from here")
        case "SHOW_REF" if not node.get("query"):
            raise _refused("only topics can be described", "list topics with `icestream topic list`")
    if node.get("class") == "FUNCTION" and str(node.get("function_name")).lower() in _REFUSED_FUNCTIONS:
        raise _refused(f"{node['function_name']}() cannot be used here")


def _with_names(nodes: list[dict[str, Any]]) -> Iterator[str]:
    for node in nodes:
        defined = node.get("cte_map")
        if isinstance(defined, dict):
            yield from (str(entry["key"]).lower() for entry in defined.get("map", ()))


def _refused(problem: str, remedy: str = _REMEDY) -> InvalidRequestError:
    return InvalidRequestError(problem, operation=OPERATION, remedy=remedy)
