"""Damaged requests are stored or refused for good; they are never a fault of the broker's own."""

import random

import pytest
from tests.integration.otlp.conftest import Doors
from tests.otlp_requests import serialized

from icestream.telemetry import Signal

ROUNDS = 150
STORED_OR_REFUSED = {0, 3, 200, 400, 413}


def damaged(source: random.Random, body: bytes) -> bytes:
    """Some bytes changed, cut out or repeated."""
    made = bytearray(body)
    for _ in range(source.randint(1, 4)):
        place, length = source.randrange(len(made) + 1), source.randint(1, 8)
        match source.randrange(3):
            case 0:
                made[place : place + length] = source.randbytes(length)
            case 1:
                del made[place : place + length]
            case _:
                made[place:place] = made[place : place + length * 4]
    return bytes(made)


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize("door", ["grpc", "http"])
def test_damaged_requests(doors: Doors, door: str, signal: Signal) -> None:
    source = random.Random(f"{door} {signal}")
    whole = serialized(signal, 3, tenant="acme")
    codes = {doors.send(door, signal, damaged(source, whole), x_tenant_id="fuzz").code for _ in range(ROUNDS)}
    assert codes <= STORED_OR_REFUSED
    assert len(codes) > 1
    assert doors.storage.budget.used_bytes == 0
    assert doors.send(door, signal, whole, x_tenant_id="fuzz").ok


def test_damaged_json(doors: Doors) -> None:
    source = random.Random(3)
    whole = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"a","traceId":"00ff","kind":2,"attributes":[]}]}]}]}'
    headers = {"content-type": "application/json", "x-tenant-id": "fuzz-json"}
    codes = {doors.post(Signal.TRACES, damaged(source, whole), headers).code for _ in range(ROUNDS)}
    assert codes <= STORED_OR_REFUSED
    assert doors.post(Signal.TRACES, whole, headers).ok
