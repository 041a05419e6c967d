"""Messages that neither log nor cloud have any more, for a table that lacks them: another table of the topic has them.

They are read through the broker, which finds them by itself: its readers look into every table of a topic. So a table
that is new, or was not fed for a while, is filled up like from the log: in pieces, each once, from its ledger on.
"""

from dataclasses import dataclass, replace

from icestream.client.pipeline import TopicBacklog
from icestream.pipeline.planner import mean_bytes


@dataclass(frozen=True)
class ReadBack(TopicBacklog):
    """What a table of the topic holds before its log begins."""


def read_back(log: TopicBacklog, start: int, end: int) -> ReadBack:
    """The messages from an offset on to where the log begins, or to where the table that has them ends."""
    end = min(end, log.start_offset)
    nbytes = max(1, round(mean_bytes(log) * (end - start)))
    return replace(ReadBack(**vars(log)), start_offset=start, durable_end=end, nbytes=nbytes)


def cut_evenly(held: TopicBacklog, start: int, end: int, *, piece_bytes: int, max_pieces: int) -> list[int]:
    """Where pieces of about `piece_bytes` end, if all messages are of the same size."""
    step = max(1, int(piece_bytes / mean_bytes(held)))
    return [min(end, start + step * number) for number in range(1, max_pieces + 1) if start + step * (number - 1) < end]
