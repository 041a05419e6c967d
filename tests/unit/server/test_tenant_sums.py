"""What the pipeline reports, summed by tenant."""

from icestream.model.names import TopicName
from icestream.pipeline.report import TopicPassFigures
from icestream.storage.pipeline_figures import PipelineFigures


def told(topic: str, **counts: int) -> dict[str, object]:
    return TopicPassFigures(TopicName.parse(topic), **counts).to_json()  # type: ignore[arg-type]


def test_a_tenants_topics_are_added_up_over_passes() -> None:
    figures = PipelineFigures(lambda _topic: True)
    figures.report({"passes": 1}, [told("acme/logs", messages=5, commits=1), told("acme/traces", messages=2)])
    figures.report({"passes": 1}, [told("acme/logs", messages=1, failures=3), told("globex/logs", quarantined=1)])
    acme = figures.sums_of("acme")
    assert (acme["messages"], acme["commits"], acme["failures"], acme["quarantined"]) == (8, 1, 3, 0)
    assert figures.sums_of("globex")["quarantined"] == 1
    assert set(figures.sums_of("nobody").values()) == {0}
    assert "passes" not in acme


def test_what_is_kept_is_bounded_by_the_topics_that_exist() -> None:
    existing = {"acme/logs", "acme/traces", "globex/logs"}
    figures = PipelineFigures(lambda topic: str(topic) in existing)
    figures.report({}, [told(topic, messages=1) for topic in (*sorted(existing), "made/up")])
    assert figures.sums_of("made")["messages"] == 0
    existing -= {"globex/logs", "acme/traces"}
    figures.report({}, [])
    assert figures.sums_of("globex")["messages"] == 0
    assert figures.sums_of("acme")["messages"] == 2
