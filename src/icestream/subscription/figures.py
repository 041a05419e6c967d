"""How the figures of a subscription come about."""

from icestream.model.errors import IcestreamError
from icestream.subscription.live import Live
from icestream.subscription.source import Source
from icestream.subscription.stats import ConsumerStats


def consumer_figures(live: Live) -> tuple[ConsumerStats, ...]:
    """Under the subscription's lock."""
    if live.cursor is None or not live.sessions:
        return ()
    held = live.cursor.window.held_counts(max(live.sessions) + 1)
    return tuple(
        ConsumerStats(
            name=session.name,
            connected_us=session.connected_us,
            unacknowledged=held[number],
            credit_messages=max(0, session.credit.messages),
            is_active=live.mode.is_active(number),
        )
        for number, session in live.sessions.items()
    )


def lag_seconds(source: Source, floor: int, floor_time_us: int | None, now_us: int) -> float:
    """Age of the message at the floor."""
    if floor_time_us is None:
        try:
            floor_time_us = source.time_at(floor)
        except IcestreamError:  # not readable: other figures say so
            return 0.0
    if floor_time_us is None:
        return 0.0
    return max(0.0, (now_us - floor_time_us) / 1e6)
