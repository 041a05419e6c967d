"""Parses a query: one SELECT, and the tables that it names. DuckDB parses it, which also runs it.

SQL reserves two words that topics use: `default`, a namespace, and `offset`, a column of every topic. `quote_names`
quotes them where they can only be names, so that `SELECT max(offset) FROM default.events` works: `default` before a
dot, and `offset` unless the row count of an `OFFSET n` clause follows.
"""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import duckdb

from icestream.model.errors import InvalidRequestError, TooLargeError

_Token = tuple[int, str]
_ENDS_A_VALUE = frozenset(
    re.findall(
        r"\w+",
        "from as in is not between and or like ilike similar collate when then else end asc desc nulls where group "
        "having window qualify order limit union except intersect filter over",
    )
)


def quote_names(sql: str) -> str:
    """Quote `default` and `offset` where they can only be names."""
    text = sql.encode()
    tokens = _tokens(text)
    made, done = b"", 0
    for (start, word), (_, following) in pairwise([*tokens, (len(text), "")]):
        if (word == "default" and following == ".") or (word == "offset" and _is_column(following)):
            made += text[done:start] + b'"' + word.encode() + b'"'
            done = start + len(word)
    return (made + text[done:]).decode()


def _is_column(following: str) -> bool:
    """Return whether the token after `offset` cannot begin the row count of an `OFFSET` clause."""
    return following in _ENDS_A_VALUE or not following or following[0] in ",);=<>!+-*/%:]|&^."


def _tokens(text: bytes) -> list[_Token]:
    """Return for each token its position and its first word in lower case. Comments are no tokens."""
    starts = [start for start, _ in duckdb.tokenize(text.decode())]
    found = []
    for start, end in pairwise([*starts, len(text)]):
        words = text[start:end].decode(errors="replace").split(maxsplit=1)
        found.append((start, words[0].lower() if words else ""))
    return found


MAX_TEXT = 100_000
MAX_TABLES = 64
MAX_NESTED = 8
"""Nesting depth of queries and lambdas inside expressions. DuckDB's planning time grows fast with it, and planning
cannot be interrupted."""
OPERATION = "sql"
_EXPLAIN = re.compile(r"\s*explain\s+(analyze\s+)?", re.IGNORECASE)
_ALLOWED_SOURCES = frozenset({"range", "generate_series", "unnest", "repeat", "json_each", "json_tree"})
"""Functions that make rows from their arguments alone. The others read files, settings and memory."""
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
    """The text that DuckDB runs."""
    tables: frozenset[TableName]
    with_names: frozenset[str]
    """The names that the statement's WITH clauses define, in lower case."""


def parse(connection: duckdb.DuckDBPyConnection, text: str) -> Statement:
    """Parse a query; raise `InvalidRequestError` unless it is one SELECT."""
    if len(text) > MAX_TEXT:
        raise TooLargeError(f"a query has at most {MAX_TEXT} characters, not {len(text)}", operation=OPERATION)
    if "\0" in text:
        raise _refused("a query has no zero bytes")
    try:
        sql = quote_names(text)
        select = _EXPLAIN.sub("", sql, count=1) if _EXPLAIN.match(sql) else sql
        (serialized,) = connection.execute("SELECT json_serialize_sql(?)", [select]).fetchone() or ("{}",)
        nodes = list(_nodes(_single_select(json.loads(serialized))))
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
        raise _refused("only a SELECT can run here")
    statements = parsed.get("statements") or []
    if len(statements) != 1:
        raise _refused(f"a query is one statement, not {len(statements)}")
    return statements[0]


def _nodes(tree: Any, nested: int = 0) -> Iterator[dict[str, Any]]:
    """Yield every object of the parsed statement."""
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
    """Raise if a node does more than compute over the tables that the statement names."""
    match node.get("type"):
        case "TABLE_FUNCTION":
            name = str((node.get("function") or {}).get("function_name")).lower()
            if name not in _ALLOWED_SOURCES:
                raise _refused(f"{name}() is not allowed as a table")
        case "SHOW_REF" if not node.get("query"):
            raise _refused("only topics can be described", "list topics with `icestream topic list`")
    if node.get("class") == "FUNCTION" and str(node.get("function_name")).lower() in _REFUSED_FUNCTIONS:
        raise _refused(f"{node['function_name']}() is not allowed")


def _with_names(nodes: list[dict[str, Any]]) -> Iterator[str]:
    for node in nodes:
        defined = node.get("cte_map")
        if isinstance(defined, dict):
            yield from (str(entry["key"]).lower() for entry in defined.get("map", ()))


def _refused(problem: str, remedy: str = _REMEDY) -> InvalidRequestError:
    return InvalidRequestError(problem, operation=OPERATION, remedy=remedy)
