"""The asyncio client has the calls of the other one, with the same arguments."""

import inspect
from typing import Any

import pytest

from icestream import aio
from icestream.client import Client, Producer, Receipt, Subscription
from icestream.client.admin import Admin, CloudCalls, SqlCalls, SubscriptionAdmin
from icestream.client.producer import BatchReceipt

ADMIN = [name for kind in (Admin, CloudCalls, SqlCalls, SubscriptionAdmin) for name in vars(kind) if name[0] != "_"]
CALLS: list[tuple[type, type, str]] = [
    (Client, aio.Client, name) for name in [*ADMIN, "read", "consume", "subscribe", "producer", "close"]
]
CALLS += [(Producer, aio.Producer, name) for name in ("send", "send_batch", "flush", "close")]
CALLS += [
    (Subscription, aio.Subscription, name)
    for name in ("receive", "receive_batch", "ack", "ack_cumulative", "nack", "flush", "close")
]
NOT_THERE = {"sql_batches"}


def parameters(call: Any) -> dict[str, Any]:
    return {name: found.default for name, found in inspect.signature(call).parameters.items()}


@pytest.mark.parametrize(("kind", "asynchronous", "name"), CALLS)
def test_a_call_takes_the_same_arguments(kind: type, asynchronous: type, name: str) -> None:
    if name in NOT_THERE:
        assert not hasattr(asynchronous, name)
        return
    expected, found = parameters(getattr(kind, name)), parameters(getattr(asynchronous, name))
    passed_on = {"options", "attributes", "changes"}
    if passed_on & found.keys():  # what it does not name goes on to the other client as it is
        assert {name: expected.get(name) for name in found.keys() - passed_on} == {
            name: found[name] for name in found.keys() - passed_on
        }
    else:
        assert found == expected


@pytest.mark.parametrize("kind", [Receipt, BatchReceipt])
def test_a_receipt_has_the_same_figures(kind: type) -> None:
    asynchronous = {Receipt: aio.Receipt, BatchReceipt: aio.BatchReceipt}[kind]
    figures = {name for name in dir(kind) if isinstance(getattr(kind, name), property)} - {"batches"}
    assert figures <= set(dir(asynchronous))
