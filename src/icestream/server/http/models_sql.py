"""Bodies of SQL over HTTP."""

from typing import Any

from pydantic import Field

from icestream.server.http.models import Model


class Sql(Model):
    sql: str = Field(
        description="One SELECT; topics are tables `namespace.name`.", examples=["SELECT count(*) FROM a.b"]
    )
    fresh: bool = Field(default=True, description="Whether rows that are not in the tables yet are seen.")


class SqlColumn(Model):
    name: str
    type: str = Field(description="Arrow's name of it.")


class SqlRows(Model):
    columns: list[SqlColumn]
    rows: list[dict[str, Any]] = Field(
        description="By column. Bytes are text if they are UTF-8, else base64 under `name_base64`; times are RFC 3339."
    )
    truncated: bool = Field(description="Whether there were more rows than an answer may have.")
