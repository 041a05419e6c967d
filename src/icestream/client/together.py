"""Several producers' batches for one topic as one request: it is committed and answered as one."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from icestream.client.pending import PendingBatch
from icestream.model.messages import message_batch
from icestream.model.wire import lone_message


def together(
    batches: Sequence[PendingBatch], ids: Sequence[int], *, seen: int, more: bool
) -> tuple[pa.RecordBatch | None, bytes]:
    """The batch and its metadata; no batch where all are lone messages, all in the metadata. With the lock held."""
    first = batches[0].owner
    parts = [_part(batch, number) for batch, number in zip(batches, ids, strict=True)]
    request: dict[str, Any] = {"topic": first.topic, "parts": parts, "seen": seen}
    if first.ack is not None:
        request["ack"] = first.ack
    if more:
        request["more"] = True
    if not all(batch.is_lone_message for batch in batches):
        return _joined(batches), msgspec.json.encode(request)
    bodies = [batch.lone_body() for batch in batches]
    for part, body in zip(parts, bodies, strict=True):
        part["nbytes"] = len(body)
    return None, lone_message(msgspec.json.encode(request), *bodies)


def _part(batch: PendingBatch, number: int) -> dict[str, Any]:
    owner = batch.owner
    part = {"producer": owner.name, "sequence": batch.sequence, "count": batch.count, "id": number}
    if owner.session:
        part["session"] = owner.session
    return part


def _joined(batches: Sequence[PendingBatch]) -> pa.RecordBatch:
    """The messages of batches that are columns of Python values still, in order."""
    payloads = [payload for batch in batches for payload in batch.payloads]
    keys = attributes = None
    if any(batch.keys for batch in batches):
        keys = [key for batch in batches for key in batch.keys or [None] * batch.count]
    if any(batch.attributes for batch in batches):
        attributes = [pairs for batch in batches for pairs in batch.attributes or [None] * batch.count]
    return message_batch(payloads, keys, attributes)
