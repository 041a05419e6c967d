"""Maintenance of real tables, with a clock that can be set ahead."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.topics import Topics

from icestream.pipeline.maintenance.run import Maintenance
from icestream_servers.spark_process import SparkProcess

Keep = Callable[..., Maintenance]


@pytest.fixture
def maintenance(topics: Topics, spark_process: SparkProcess) -> Keep:
    """Makes one with the settings that a test asks for."""

    def make(*, hours_ahead: int = 0, **settings: Any) -> Maintenance:
        chosen = topics.settings_with(maintenance=settings)
        return Maintenance(
            chosen,
            topics.tables,
            spark_process.sql(chosen),
            now=lambda: datetime.now(UTC) + timedelta(hours=hours_ahead),
        )

    return make
