import pickle

import pytest

from icestream.model import errors


@pytest.mark.parametrize("kind", [errors.DamagedError, errors.OverloadedError, errors.TopicNotFoundError])
def test_an_error_survives_the_wire_and_pickling(kind: type[errors.IcestreamError]) -> None:
    error = kind("broken", operation="read", place="file at byte 7", remedy="repair it", details={"position": 7})
    for copy in (errors.error_from_dict(error.to_dict()), pickle.loads(pickle.dumps(error))):
        assert type(copy) is kind
        assert copy.to_dict() == error.to_dict()
        assert str(copy) == "read: broken [file at byte 7]; repair it"


def test_an_unknown_code_becomes_the_base_class() -> None:
    error = errors.error_from_dict({"code": "from_the_future", "message": "x", "retryable": True})
    assert type(error) is errors.IcestreamError
    assert error.retryable


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    codes = [kind.code for kind in kinds if issubclass(kind, errors.IcestreamError)]
    assert len(codes) == len(set(codes))
