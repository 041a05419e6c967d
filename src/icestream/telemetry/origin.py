"""Where rows come from: resource and scope, repeated for each row of theirs."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.telemetry.arrays import Ints, element_bytes, owners_of
from icestream.telemetry.options import SERVICE_NAME, Options, Source, check_limit
from icestream.telemetry.schemas import ENTITY_REFS, RESOURCE, SCOPE

Columns = dict[str, pa.Array]
_TILES = 8


@dataclass(frozen=True)
class Origin:
    """One request, walked down to its items: spans, log records or metrics."""

    resources: pa.StructArray
    scopes: pa.StructArray
    items: pa.StructArray
    resource_of_scope: Ints
    scope_of_item: Ints

    @property
    def attributes(self) -> list[pa.ListArray]:
        """The serialized attributes of resources and scopes; decoded, they go into `columns`."""
        return [part.field("attributes") for part in (self.resources.field("resource"), self.scopes.field("scope"))]

    def columns(
        self, scope_of_row: Ints, of_resources: list[pa.Array], of_scopes: list[pa.Array], options: Options
    ) -> Columns:
        """Resource and scope columns, and what is promoted from them, for rows that belong to these scopes."""
        resources = _resource_columns(self.resources, of_resources, options)
        scopes = _scope_columns(self.scopes, of_scopes, options)
        resource_of_row = self.resource_of_scope[scope_of_row]
        return repeat(resources, resource_of_row, options) | repeat(scopes, scope_of_row, options)


def walk(resources: pa.StructArray, options: Options) -> Origin:
    """`resources` is what `decode_request` gives: resource, list of scopes, schema URL."""
    scope_lists = resources.field(1)
    scopes = scope_lists.values
    item_lists = scopes.field(1)
    check_limit("items in the request", len(item_lists.values), options.max_rows)
    return Origin(resources, scopes, item_lists.values, owners_of(scope_lists), owners_of(item_lists))


def _resource_columns(resources: pa.StructArray, attributes: list[pa.Array], options: Options) -> Columns:
    resource = resources.field("resource")
    parts = [*attributes, resource.field("dropped_attributes_count"), resource.field("entity_refs").cast(ENTITY_REFS)]
    return {
        "resource": _struct(parts, RESOURCE, resource),
        "resource_schema_url": resources.field("schema_url"),
        SERVICE_NAME.column: _look_up(attributes[0], SERVICE_NAME.key),
        **promoted_columns(attributes[0], Source.RESOURCE, options),
    }


def _scope_columns(scopes: pa.StructArray, attributes: list[pa.Array], options: Options) -> Columns:
    scope = scopes.field("scope")
    parts = [scope.field("name"), scope.field("version"), *attributes, scope.field("dropped_attributes_count")]
    return {
        "scope": _struct(parts, SCOPE, scope),
        "scope_schema_url": scopes.field("schema_url"),
        **promoted_columns(attributes[0], Source.SCOPE, options),
    }


def _struct(parts: list[pa.Array], kind: pa.DataType, presence: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=presence.is_null())


def _look_up(attributes: pa.MapArray, key: str) -> pa.Array:
    return pc.map_lookup(attributes, key, "first")


def promoted_columns(attributes: pa.MapArray, source: Source, options: Options) -> Columns:
    wanted = [promoted for promoted in options.promoted if promoted.source is source]
    return {promoted.column: _look_up(attributes, promoted.key) for promoted in wanted}


def repeat(columns: Columns, owner_of_row: Ints, options: Options) -> Columns:
    """Each column's value for each row, unless all together would be more bytes than allowed."""
    _check_size(columns, owner_of_row, options)
    if len(owner_of_row) and owner_of_row[0] == owner_of_row[-1]:  # rows are in the order of their owners
        return {name: _tile(column.slice(owner_of_row[0], 1), len(owner_of_row)) for name, column in columns.items()}
    indices = pa.array(owner_of_row)
    return {name: column.take(indices) for name, column in columns.items()}


def _check_size(columns: Columns, owner_of_row: Ints, options: Options) -> None:
    if sum(column.nbytes for column in columns.values()) * len(owner_of_row) <= options.max_batch_bytes:
        return
    owners, rows_of = np.unique(owner_of_row, return_counts=True)
    size = sum(int(rows_of @ element_bytes(column)[owners]) for column in columns.values())
    check_limit("bytes of repeated resources, scopes and metrics in the rows", size, options.max_batch_bytes)


def _tile(one: pa.Array, count: int) -> pa.Array:
    """`count` times the only element; quicker than to take it, as whole buffers are copied."""
    tiled = one
    while len(tiled) < count:
        tiled = pa.concat_arrays([tiled] * min(_TILES, -(-count // len(tiled))))
    return tiled.slice(0, count)
