"""Ingest: from a request to durable rows.

The steps of a request. Each may refuse it, with nothing stored:

1. identify the sender (`Tenants.identify`)
2. check the tenant's rate
3. convert the bytes to rows, in one thread at a time: the decoders hold the interpreter lock anyway, and one at a time
   bounds their memory. Requests for the same topic that wait meanwhile go on together (`Combiner`)
4. divide the rows by tenant, if a setting names the attribute. Rows of unknown tenants, or of tenants that the sender
   may not send for, are reported as rejected; the others go on. In this case step 2 comes after this one: the rates of
   all tenants are checked first, and counted then
5. find or create the topics
6. append all parts to their logs, and respond when each is on disk. If one fails the request fails: a sender that
   repeats it stores the other parts twice, never none
"""

import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from icestream.config import Settings
from icestream.model.callers import Callers
from icestream.model.enums import AckLevel
from icestream.model.errors import IcestreamError, InvalidNameError, TooLargeError
from icestream.storage import IcebergStorage, PublishItem, Topic
from icestream.telemetry.combine import Combiner, TelemetryTarget
from icestream.telemetry.convert import to_batch
from icestream.telemetry.schemas import AttributeOwner, ConversionOptions, Promoted, Signal
from icestream.telemetry.tenants import TelemetrySender, TenantLimits, TenantRefusedError, Tenants, TenantStatistics
from icestream.telemetry.topics import TelemetryTopics
from icestream.telemetry.wire import json_to_request
from icestream.wal import Append

MAX_TENANTS_A_REQUEST = 100
_MAX_REASON = 1000
_MAX_JOINED_BYTES = 4 * 1024 * 1024
_TENANT_COLUMN = "icestream.tenant"
"""The column of the attribute that names the tenant, between conversion and the log."""

_Refused: TypeAlias = dict[str | None, tuple[int, IcestreamError]]
"""For each tenant, how many rows were refused, and why."""


@dataclass(frozen=True)
class Stored:
    """The result of a request."""

    rows: int
    """The request's share, by size, of the rows that were stored together. The sum over requests is exact."""
    nbytes: int
    rejected: int = 0
    reason: str = ""


class Ingest:
    def __init__(self, storage: IcebergStorage) -> None:
        settings = storage.settings.telemetry
        self.options = options_of(storage.settings)
        attribute = settings.tenant_attribute
        named = (Promoted(attribute, _TENANT_COLUMN, AttributeOwner.RESOURCE),) if attribute is not None else ()
        self._conversion = replace(self.options, promoted=(*self.options.promoted, *named))
        self._by_attribute = attribute is not None
        self._storage = storage
        self._topics = TelemetryTopics(storage, settings, self.options)
        self._limits = TenantLimits(settings)
        self._combiner = Combiner(partial(to_batch, options=self.options), self._publish_rows, _MAX_JOINED_BYTES)
        callers = Callers(storage.settings.auth.token_pairs)
        self.tenants = Tenants(settings, callers, self._topics.has_tenant)
        self.statistics = TenantStatistics(settings.max_tracked_tenants, self.tenants.is_known)

    def store(self, signal: Signal, sender: TelemetrySender, request: bytes, *, is_json: bool = False) -> Stored:
        """Store a request, serialized or in JSON, in the logs of its tenants. Return when it is durable."""
        if self._by_attribute:
            return self._store_divided(signal, sender, self._plain(signal, request, is_json=is_json))
        assert sender.tenant is not None
        self._limits.take({sender.tenant: len(request)})
        target = TelemetryTarget(sender.tenant, sender.dataset, signal)
        stored = Stored(*self._combiner.store(target, self._plain(signal, request, is_json=is_json)))
        self.statistics.accepted(sender.tenant, signal, rows=stored.rows, nbytes=len(request))
        return stored

    def _plain(self, signal: Signal, request: bytes, *, is_json: bool) -> bytes:
        if not is_json:
            return request
        with self._combiner.converting:
            return json_to_request(signal, request, self.options)

    def _publish_rows(self, target: TelemetryTarget, rows: pa.RecordBatch) -> None:
        topic = self._topics.get(*target)
        self._storage.publish(topic, _fitted(rows, topic.body_schema), level=AckLevel.DISK)

    def _store_divided(self, signal: Signal, sender: TelemetrySender, request: bytes) -> Stored:
        with self._combiner.converting:
            batch = to_batch(signal, request, self._conversion)
        parts, refused = self._divide(batch, sender)
        self._limits.take({tenant: len(request) * part.num_rows // len(batch) for tenant, part in parts.items()})
        found = self._find_topics(signal, sender, parts, refused)
        if refused and not found:
            raise next(iter(refused.values()))[1]
        self._publish(found)
        self._count(signal, sender, found, refused, len(request))
        return Stored(
            sum(rows.num_rows for _, rows in found),
            sum(rows.nbytes for _, rows in found),
            sum(count for count, _ in refused.values()),
            "; ".join(dict.fromkeys(str(error) for _, error in refused.values()))[:_MAX_REASON],
        )

    def _count(
        self,
        signal: Signal,
        sender: TelemetrySender,
        stored: list[tuple[Topic, pa.RecordBatch]],
        refused: _Refused,
        nbytes: int,
    ) -> None:
        """Count refused rows against the tenant of the token, and not against the tenants that the rows name."""
        rows = sum(part.num_rows for _, part in stored) + sum(count for count, _ in refused.values())
        for topic, part in stored:
            share = nbytes * part.num_rows // max(1, rows)
            self.statistics.accepted(topic.name.namespace, signal, rows=part.num_rows, nbytes=share)
        if not stored and sender.tenant is not None:
            self.statistics.accepted(sender.tenant, signal, rows=0, nbytes=nbytes)
        for tenant, (count, _) in refused.items():
            self.statistics.rejected(tenant if sender.any_tenant else sender.tenant, signal, count)

    def _find_topics(
        self, signal: Signal, sender: TelemetrySender, parts: dict[str, pa.RecordBatch], refused: _Refused
    ) -> list[tuple[Topic, pa.RecordBatch]]:
        """Find the topics of the parts. A part without a possible topic is refused, and does not stop the others."""
        found = []
        for tenant, rows in parts.items():
            try:
                found.append((self._topics.get(tenant, sender.dataset, signal), rows))
            except IcestreamError as error:
                if error.retryable:
                    raise
                refused[tenant] = (rows.num_rows, error)
        return found

    def _divide(self, batch: pa.RecordBatch, sender: TelemetrySender) -> tuple[dict[str, pa.RecordBatch], _Refused]:
        """Divide the rows by tenant. Return also the refused rows, by tenant and with the reason."""
        named = batch.column(batch.num_columns - 1)
        rows = batch.select(batch.schema.names[:-1])
        names = [name if name is not None else sender.tenant for name in pc.unique(named).to_pylist()]
        if len(names) > MAX_TENANTS_A_REQUEST:
            raise TooLargeError(
                f"the request has rows of {len(names)} tenants, the limit is {MAX_TENANTS_A_REQUEST}",
                operation="publish telemetry",
                remedy="send fewer tenants' rows at a time",
            )
        if sender.tenant is not None and named.null_count:
            named = pc.fill_null(named, sender.tenant)
        parts: dict[str, pa.RecordBatch] = {}
        refused: _Refused = {}
        for name in dict.fromkeys(names):
            chosen = pc.is_null(named) if name is None else pc.equal(named, name)
            part = rows if len(set(names)) == 1 else rows.filter(chosen)
            error = self._refusal(name, sender)
            if error is not None:
                refused[name] = (part.num_rows, error)
            else:
                parts[str(name)] = part
        return parts, refused

    def _refusal(self, name: str | None, sender: TelemetrySender) -> IcestreamError | None:
        if name is None:
            return TenantRefusedError("a resource names no tenant", operation="publish telemetry")
        if name != sender.tenant:
            if not sender.any_tenant:
                return TenantRefusedError("a resource names another tenant", operation="publish telemetry")
            try:
                self.tenants.check(name)
            except (InvalidNameError, TenantRefusedError) as error:
                return error
        return None

    def _publish(self, parts: list[tuple[Topic, pa.RecordBatch]]) -> None:
        waiting = threading.Semaphore(0)
        handed: list[Append] = []
        failure: IcestreamError | None = None
        for topic, rows in parts:
            try:
                item = PublishItem(_fitted(rows, topic.body_schema), lambda _: waiting.release())
                handed.append(self._storage.publishing.submit(topic, item, level=AckLevel.DISK, inline=False))
            except IcestreamError as error:
                failure = error
                break
        for _ in handed:
            waiting.acquire()
        failures = [append.error for append in handed if append.error is not None]
        if failure is not None or failures:
            raise failure or failures[0]


def options_of(settings: Settings) -> ConversionOptions:
    telemetry = settings.telemetry
    return ConversionOptions(
        promoted=tuple(Promoted(key, column, AttributeOwner(source)) for source, key, column in telemetry.promoted),
        max_request_bytes=telemetry.max_request_bytes,
        max_rows=telemetry.max_request_rows,
        max_batch_bytes=settings.server.max_batch_bytes * 15 // 16,  # the rest is for what a frame adds
    )


def _fitted(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with empty columns that the topic has from earlier settings."""
    if rows.schema.equals(schema):
        return rows
    columns = [
        rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
