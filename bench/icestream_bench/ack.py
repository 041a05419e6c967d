"""`bench ack`: how long a durable acknowledgement takes, one message at a time."""

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from icestream.client import Client
from icestream_bench.figures import Latencies
from icestream_bench.floors import EchoFloor, FlightFloor, SyncFloor

_ROUNDS = 20
_WARM_UP = 200
_FRAME_OVERHEAD_BYTES = 180  # the frame's header, the producer's name and the body's own header


def measure_ack(
    broker: str, directory: Path, *, messages: int, message_bytes: int, progress: Callable[[float], None]
) -> dict[str, Any]:
    payload = os.urandom(message_bytes)
    per_round = max(1, messages // _ROUNDS)
    acks: list[float] = []
    syncs: list[float] = []
    trips: list[float] = []
    echoes: list[float] = []
    sync_floor, flight_floor, echo_floor = SyncFloor(directory), FlightFloor(message_bytes), EchoFloor(message_bytes)
    try:
        with Client(broker) as client, client.producer("bench/ack") as producer:
            for _ in range(_WARM_UP):
                producer.send(payload).result()
            flight_floor.measure(_WARM_UP)
            echo_floor.measure(_WARM_UP)
            for number in range(_ROUNDS):
                syncs += sync_floor.measure(message_bytes + _FRAME_OVERHEAD_BYTES, per_round)
                trips += flight_floor.measure(per_round)
                echoes += echo_floor.measure(per_round)
                for _ in range(per_round):
                    started = perf_counter()
                    producer.send(payload).result()
                    acks.append(perf_counter() - started)
                progress((number + 1) / _ROUNDS)
    finally:
        flight_floor.close()
        echo_floor.close()
        sync_floor.close()
    ack, sync, trip, echo = (Latencies.of(seconds) for seconds in (acks, syncs, trips, echoes))
    floor_ms = round(sync.p50_ms + echo.p50_ms, 4)
    return {
        "message_bytes": message_bytes,
        "ack": asdict(ack),
        "floor": {"write_fdatasync": asdict(sync), "loopback_echo": asdict(echo), "sum_p50_ms": floor_ms},
        "bare_flight_round_trip": asdict(trip),
        "p50_to_floor": round(ack.p50_ms / floor_ms, 3),
    }
