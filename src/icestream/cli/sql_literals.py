"""Values and names inside SQL text: whatever they are, they stay values and names.

Texts and bytes are written in a way that both a query and a reader's filter understand, unless said otherwise.
"""

import click

from icestream.model.names import TopicName


def text_literal(text: str) -> str:
    """Backslashes mean nothing inside; only the quote itself is doubled."""
    return "'" + text.replace("'", "''") + "'"


def query_bytes(value: bytes) -> str:
    """For queries. DuckDB computes it once, and gives the scan the bytes."""
    return f"from_hex('{value.hex()}')"


def filter_bytes(value: bytes) -> str:
    """For filters."""
    return f"x'{value.hex()}'"


def query_time(time_us: int) -> str:
    """For queries: microseconds since 1970."""
    return f"make_timestamptz({time_us})"


def table_name(topic: TopicName) -> str:
    """A topic's names have no quotes in them; they may have dashes and dots, or be words of SQL."""
    return f'"{topic.namespace}"."{topic.name}"'


def check_text(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """For options: bytes of the command line that are no text cannot be sent to a broker."""
    if value is not None:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise click.BadParameter("this is not text in UTF-8") from None
    return value
