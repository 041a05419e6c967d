"""What the pipeline reports, summed by tenant."""

import msgspec

from icestream.model.names import TopicName
from icestream.pipeline.report import TopicPassFigures
from icestream.protocol.pipeline import PassReport, TopicReport, WriteFigures
from icestream.storage.pipeline_figures import PipelineFigures

ONE_PASS, NO_PASS = PassReport(passes=1), PassReport()


def told(topic: str, **counts: int) -> TopicReport:
    figures = TopicPassFigures(TopicName.parse(topic), **counts)  # type: ignore[arg-type]
    return msgspec.convert(figures.to_json(), TopicReport)


def test_a_tenants_topics_are_added_up_over_passes() -> None:
    figures = PipelineFigures(lambda _topic: True)
    figures.report(ONE_PASS, [told("acme/logs", messages=5, commits=1), told("acme/traces", messages=2)])
    figures.report(
        PassReport(passes=1), [told("acme/logs", messages=1, failures=3), told("globex/logs", quarantined=1)]
    )
    acme = figures.sums_of("acme")
    assert (acme.messages, acme.commits, acme.failures, acme.quarantined) == (8, 1, 3, 0)
    assert figures.sums_of("globex").quarantined == 1
    assert figures.sums_of("nobody") == WriteFigures()


def test_what_is_kept_is_bounded_by_the_topics_that_exist() -> None:
    existing = {"acme/logs", "acme/traces", "globex/logs"}
    figures = PipelineFigures(lambda topic: str(topic) in existing)
    figures.report(NO_PASS, [told(topic, messages=1) for topic in (*sorted(existing), "made/up")])
    assert figures.sums_of("made").messages == 0
    existing -= {"globex/logs", "acme/traces"}
    figures.report(NO_PASS, [])
    assert figures.sums_of("globex").messages == 0
    assert figures.sums_of("acme").messages == 2
