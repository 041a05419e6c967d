"""Whatever consumers do, whenever the broker ends: nothing is lost, nothing acknowledged comes again, order holds."""

import os
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.subscription.engine import TOPIC, Site, cursor_of

from icestream.model.offsets import StartPosition
from icestream.subscription import BrokerSubscription, ConsumerSession

SOAK = bool(os.environ.get("ICESTREAM_SOAK"))
NACK_DELAY_MS = 50
ACK_TIMEOUT_MS = 500
PICKS = st.integers(0, 11)
MOST_CONSUMERS = 4
KEYS = 5


class Held:
    """A consumer, as it knows itself."""

    def __init__(self, session: ConsumerSession) -> None:
        self.session = session
        self.holds: list[int] = []


class SubscriptionMachine(RuleBasedStateMachine):
    kind = "exclusive"

    def __init__(self) -> None:
        super().__init__()
        self.published = 0
        self.acknowledged: set[int] = set()
        """Certainly: in the engine, and nothing crashed since."""
        self.persisted: set[int] = set()
        self.wanted_from = 0
        """Where a seek went: everything from there on is to be delivered again."""
        self.refused: set[int] = set()
        """Nacked or timed out: they count as delivered before."""
        self.disorder = False
        """Something was nacked or timed out since the last seek: order is not kept any more."""
        self.seen: set[int] = set()
        self.consumers: dict[int, Held] = {}
        self.connected = 0

    @initialize(
        limit=st.sampled_from([7, 1_000_000]),
        buffer=st.just(64 * 1024),
        timeout=st.booleans(),
        nacks=st.booleans(),
        seeks=st.booleans(),
    )
    def start(self, limit: int, buffer: int, timeout: bool, nacks: bool, seeks: bool) -> None:
        self.nacks, self.seeks = nacks, seeks
        self.site = Site(max_unacknowledged_messages=limit, max_buffer_bytes=buffer, session_timeout_ms=10_000)
        self.limit = limit
        self.options: dict[str, Any] = {
            "nack_delay_ms": NACK_DELAY_MS,
            "ack_timeout_ms": ACK_TIMEOUT_MS if timeout else None,
        }
        self.subscription: BrokerSubscription = self.site.open(self.kind, **self.options)

    # The world

    @rule(count=st.integers(1, 6), size=st.sampled_from([1, 30_000]))
    def publish(self, count: int, size: int) -> None:
        numbers = range(self.published, self.published + count)
        keys = [None if number % (KEYS + 1) == KEYS else b"%d" % (number % (KEYS + 1)) for number in numbers]
        self.site.topic.publish([b"x" * size] * count, keys)
        self.published += count

    @precondition(lambda self: len(self.consumers) < (1 if self.kind == "exclusive" else MOST_CONSUMERS))
    @rule(messages=st.sampled_from([1, 3, 10_000]))
    def connect(self, messages: int) -> None:
        self.connected += 1
        session = self.subscription.connect(str(self.connected), max_messages=messages)
        self.consumers[self.connected] = Held(session)

    def picked(self, pick: int) -> Held:
        return list(self.consumers.values())[pick % len(self.consumers)]

    @precondition(lambda self: self.consumers)
    @rule(pick=PICKS, most=st.sampled_from([1, 4, 100]))
    def receive(self, pick: int, most: int) -> None:
        self.receive_for(self.picked(pick), most)

    @precondition(lambda self: self.consumers)
    @rule()
    def all_receive(self) -> None:
        for held in self.consumers.values():
            self.receive_for(held, 100)

    @rule(rounds=st.integers(1, 3))
    def traffic(self, rounds: int) -> None:
        """Small batches, taken at once: consumers of a shared subscription get every few of them."""
        for _ in range(rounds):
            for _ in range(3):
                self.publish(1, 1)
            for held in self.consumers.values():
                self.receive_for(held, 1)

    def receive_for(self, held: Held, most: int) -> bool:
        batch = held.session.receive(max_messages=most, timeout_seconds=0)
        if batch is None:
            return False
        self.got(held, batch.column(0).to_pylist(), batch.column(batch.num_columns - 1).to_pylist())
        held.session.grant(batch.num_rows, batch.nbytes)
        return True

    def got(self, held: Held, offsets: list[int], counts: list[int]) -> None:
        assert offsets == sorted(offsets)
        assert not self.acknowledged.intersection(offsets), "acknowledged, and sent again"
        for other in self.consumers.values():
            assert not set(other.holds).intersection(offsets), "with two consumers at once"
        assert all(count > 0 for offset, count in zip(offsets, counts, strict=True) if offset in self.refused)
        self.check_order(held, offsets)
        held.holds += offsets
        self.seen.update(offsets)

    def check_order(self, held: Held, offsets: list[int]) -> None:
        if self.disorder:
            return
        if self.kind in {"exclusive", "failover"}:
            missing = set(range(self.wanted_from, offsets[-1])) - self.acknowledged - set(held.holds) - set(offsets)
            assert not missing, "sent before an earlier one"
        if self.kind == "key-shared":
            for offset in offsets:
                if offset % (KEYS + 1) == KEYS:
                    continue
                earlier = set(range(self.wanted_from + (offset - self.wanted_from) % (KEYS + 1), offset, KEYS + 1))
                missing = earlier - self.acknowledged - set(held.holds) - set(offsets)
                assert not missing, "sent before an earlier one of its key, or while that is with another"

    @precondition(lambda self: self.consumers)
    @rule(pick=PICKS, data=st.data())
    def ack(self, pick: int, data: st.DataObject) -> None:
        held = self.picked(pick)
        if not held.holds:
            return
        chosen = data.draw(st.lists(st.sampled_from(held.holds), unique=True))
        held.session.ack([(offset, offset + 1) for offset in chosen])
        self.settle(held, chosen)

    @precondition(lambda self: self.consumers)
    @rule(pick=PICKS)
    def ack_all(self, pick: int) -> None:
        held = self.picked(pick)
        if held.holds:
            held.session.ack([(min(held.holds), max(held.holds) + 1)])
            self.settle(held, list(held.holds))

    @precondition(lambda self: self.consumers and self.kind in {"exclusive", "failover"})
    @rule(pick=PICKS, data=st.data())
    def ack_cumulative(self, pick: int, data: st.DataObject) -> None:
        held = self.picked(pick)
        if not held.holds:
            return
        last = data.draw(st.sampled_from(held.holds))
        held.session.ack_cumulative(last)
        self.settle(held, [offset for offset in held.holds if offset <= last])
        # All before it too: also what was refused, and is to come again, and what a restart has let nobody know of.
        self.acknowledged.update(range(last))

    def settle(self, held: Held, offsets: list[int]) -> None:
        self.acknowledged.update(offsets)
        held.holds = [offset for offset in held.holds if offset not in offsets]

    @precondition(lambda self: self.consumers and self.nacks)
    @rule(pick=PICKS, data=st.data(), delay=st.sampled_from([None, 0, 200]))
    def nack(self, pick: int, data: st.DataObject, delay: int | None) -> None:
        held = self.picked(pick)
        if not held.holds:
            return
        chosen = data.draw(st.lists(st.sampled_from(held.holds), unique=True, min_size=1))
        held.session.nack([(offset, offset + 1) for offset in chosen], delay)
        self.refused.update(chosen)
        self.disorder = True
        held.holds = [offset for offset in held.holds if offset not in chosen]

    @rule(ms=st.sampled_from([10, 60, 300]))
    def time_passes(self, ms: int) -> None:
        for held in self.consumers.values():
            held.session.touch()
        before = {which: list(held.holds) for which, held in self.consumers.items()}
        self.site.pass_time(ms)
        if self.options["ack_timeout_ms"] is not None:
            # The model does not keep time for each message: it asks which ones were taken back.
            for which, held in self.consumers.items():
                mine = set(self.held_by_engine(held.session))
                late = set(before[which]) - mine
                self.refused.update(late)
                self.disorder |= bool(late)
                held.holds = [offset for offset in held.holds if offset in mine]

    def held_by_engine(self, session: ConsumerSession) -> list[int]:
        window = cursor_of(self.subscription).window
        found: list[int] = window.offsets(window.held_by(session.number)).tolist()
        return found

    def removed(self, pick: int) -> Held:
        return self.consumers.pop(list(self.consumers)[pick % len(self.consumers)])

    @precondition(lambda self: self.consumers)
    @rule(pick=PICKS)
    def close(self, pick: int) -> None:
        self.removed(pick).session.close()

    @precondition(lambda self: self.consumers)
    @rule(pick=PICKS)
    def vanish(self, pick: int) -> None:
        """A consumer is not heard of any more, and the others are."""
        gone = self.removed(pick)
        for _ in range(3):
            self.time_passes(4_000)
        assert gone.session.closed

    @precondition(lambda self: self.seeks)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.published))
        assert self.site.subscriptions.seek(TOPIC, "sub", StartPosition.offset(offset)) == offset
        self.acknowledged = set(range(offset))
        self.persisted = set(self.acknowledged)
        self.wanted_from = offset
        self.refused.clear()
        self.disorder = False
        for held in self.consumers.values():
            held.holds.clear()

    @rule()
    def flush(self) -> None:
        self.subscription.flush()
        self.persisted = set(self.acknowledged)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.site.restart(clean=clean)
        self.consumers.clear()
        if not clean:
            self.acknowledged = set(self.persisted)
            self.refused.clear()  # counts that were not written are gone
        self.persisted = set(self.acknowledged)
        self.subscription = self.site.subscriptions.get(TOPIC, "sub")

    # What holds

    @invariant()
    def the_floor_is_the_first_unacknowledged(self) -> None:
        stats = self.subscription.stats()
        unacknowledged = [offset for offset in range(self.published) if offset not in self.acknowledged]
        assert stats.lag_messages == len(unacknowledged)
        if unacknowledged:
            assert stats.floor_offset <= unacknowledged[0]
        assert stats.unacknowledged == sum(len(held.holds) for held in self.consumers.values())
        if self.subscription._state.has_cursor:
            cursor = self.subscription._state.cursor
            held = [offset for one in self.consumers.values() for offset in one.holds]
            assert max(held, default=0) < cursor.window.floor + self.limit
            assert len(cursor._buffer) <= 1 or sum(batch.nbytes for batch in cursor._buffer) <= 64 * 1024

    def teardown(self) -> None:
        """In the end the consumers that are there, if they go on, get everything that is left, each message once."""
        if not hasattr(self, "site"):
            return
        if not self.consumers:
            self.connect(10_000)
        left = {offset for offset in range(self.published) if offset not in self.acknowledged}
        left -= {offset for held in self.consumers.values() for offset in held.holds}
        before, self.seen = self.seen, set()
        for _ in range(4 * len(left) + 20):
            served = [self.receive_for(held, 100) for held in list(self.consumers.values())]
            for held in self.consumers.values():
                held.session.ack([(offset, offset + 1) for offset in held.holds])
                self.settle(held, list(held.holds))
            if not any(served):
                self.time_passes(250)
        assert self.seen == left
        assert self.acknowledged.issuperset(range(self.published))
        assert before | self.seen == set(range(self.published)) or self.seeks
        self.site.restart()
        assert self.site.subscriptions.get(TOPIC, "sub").stats().floor_offset == self.published
        self.site.subscriptions.close()


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key-shared"])
def test_a_subscription_does_what_a_set_would_do(kind: str) -> None:
    machine: Any = type("Machine", (SubscriptionMachine,), {"kind": kind})
    case = machine.TestCase
    case.settings = settings(max_examples=2_000 if SOAK else 40, stateful_step_count=50, deadline=None)
    case("runTest").runTest()
