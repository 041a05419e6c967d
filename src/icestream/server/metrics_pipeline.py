"""What the pipeline tells about itself, as metrics."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from icestream.server.pipeline_figures import PipelineFigures

_COUNTERS = {
    "passes": "Passes of the pipeline.",
    "messages": "Messages that it put into tables.",
    "bytes": "Arrow bytes of these.",
    "files": "Data files that it committed.",
    "file_bytes": "Size of these files.",
    "commits": "Commits that it made.",
    "conflicts": "Commits that met another one's and were planned anew.",
    "failures": "Ranges that could not be written or committed, and are tried again.",
    "lost": "Messages that a repair of the log had given up, and that tables therefore lack.",
    "quarantined": "Frames that it could not write and has put aside.",
    "translate_seconds": "Time that tasks took to turn log into files.",
    "commit_seconds": "Time that commits took.",
    "pass_seconds": "Time that passes took.",
}


class ProcessState(Protocol):
    @property
    def pid(self) -> int | None: ...

    @property
    def starts(self) -> int: ...


class PipelineCollector(Collector):
    def __init__(self, figures: PipelineFigures) -> None:
        self._figures = figures
        self.process: Callable[[], ProcessState] | None = None

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        sums = self._figures.sums()
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"icestream_pipeline_{name}", text, value=sums[name])
        failing = GaugeMetricFamily(
            "icestream_topic_pipeline_failing", "1 while the pipeline cannot write the topic.", labels=["topic"]
        )
        for topic, figures in self._figures.topics().items():
            failing.add_metric([topic], float(figures["error"] is not None))
        yield failing
        if self.process is not None:
            state = self.process()
            yield GaugeMetricFamily(
                "icestream_pipeline_running", "1 while the pipeline's process runs.", value=float(state.pid is not None)
            )
            yield CounterMetricFamily(
                "icestream_pipeline_starts", "Times that the pipeline's process was started.", value=state.starts
            )
