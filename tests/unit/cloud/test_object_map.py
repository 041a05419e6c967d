"""The object map under reads and changes at the same time."""

from collections.abc import Callable

import pytest
from tests.unit.storage.shelf import Shelf

from icestream.cloud import ObjectDescriptor, ObjectMap

Change = Callable[[ObjectMap, ObjectDescriptor], None]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (lambda known, added: known.add(added), [0, 3, 6]),
        (lambda known, _added: known.remove_before(3), [3, 6]),
    ],
    ids=["added", "removed"],
)
def test_a_change_is_not_waited_for_nor_lost_while_the_registry_is_read(
    monkeypatch: pytest.MonkeyPatch, change: Change, kept: list[int]
) -> None:
    shelf = Shelf()
    described = [shelf.add(end) for end in (3, 6, 9)]
    answers = [described[: 2 if kept[0] == 0 else 3], [one for one in described if one.first_offset in kept]]
    known = ObjectMap(shelf.registry)

    def read() -> list[ObjectDescriptor]:
        answer = answers.pop(0)
        if answers:
            change(known, described[2])  # after what is answered was read, and before it is heard
        return answer

    monkeypatch.setattr(shelf.registry, "objects", read)
    assert [span.first_offset for span in known.spans] == kept
    assert not answers
