"""What one read of a table may use."""

from dataclasses import dataclass
from typing import Self

from icestream.config.table import ReaderSettings
from icestream.model.units import MIB


@dataclass(frozen=True)
class ReadLimits:
    max_concurrent_reads: int = 10
    """Data files that are read at once. More are open only where they hold the same offsets and have to be merged."""
    prefetch_batches: int = 5
    """Decoded batches that are ready, or being made ready, before they are asked for."""
    max_bytes: int = 8 * MIB
    """Bytes of these batches. What is asked for next is read whatever its size."""
    batch_bytes: int = 1 * MIB
    """About the largest batch."""

    @classmethod
    def of(cls, settings: ReaderSettings) -> Self:
        return cls(settings.max_concurrent_reads, settings.prefetch_size)
