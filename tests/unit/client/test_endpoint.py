import pickle
from pathlib import Path

import pytest

from icestream import BrokerEndpoint, Client
from icestream.model.errors import InvalidRequestError


@pytest.mark.parametrize("url", ["", "http://x:1", "grpc://", "grpc://x:99999", "grpc://x:1/path", "grpc://x:port"])
def test_addresses_that_make_no_sense_are_refused(url: str) -> None:
    for connect in (Client, BrokerEndpoint):
        with pytest.raises(InvalidRequestError, match="address"):
            connect(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [("localhost", "grpc://localhost:8815"), ("grpc://[::1]:7", "grpc://[::1]:7"), ("h:9", "grpc://h:9")],
)
def test_addresses_may_be_short(url: str, shown: str) -> None:
    assert BrokerEndpoint(url).url == shown
    with Client(url) as client:
        assert client.url == shown


def test_an_endpoint_travels_with_its_token_and_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").write_bytes(b"certificate")
    monkeypatch.setenv("ICESTREAM_TOKEN", "of-the-environment")
    made = BrokerEndpoint("grpc+tls://h:9", tls=tmp_path / "ca.pem")
    monkeypatch.delenv("ICESTREAM_TOKEN")
    (tmp_path / "ca.pem").unlink()
    arrived = pickle.loads(pickle.dumps(made))
    assert arrived == made
    assert (arrived.token, arrived.root_certificates) == ("of-the-environment", b"certificate")
    assert arrived.location == "grpc+tls://h:9"


def test_a_token_is_never_shown() -> None:
    endpoint = BrokerEndpoint("h", token="secret")
    assert "secret" not in f"{endpoint!r} {endpoint}"
    with pytest.raises(InvalidRequestError) as caught:
        BrokerEndpoint("h", token="sec ret")
    assert "sec ret" not in str(caught.value)


def test_a_client_is_made_from_an_endpoint_and_gives_it_back() -> None:
    endpoint = BrokerEndpoint("h:9", token="secret")
    with Client(endpoint) as client:
        assert (client.endpoint, client.url) == (endpoint, "grpc://h:9")
    with Client("h:9", token="secret") as client:
        assert client.endpoint == endpoint
    with pytest.raises(InvalidRequestError, match="part of the endpoint"):
        Client(endpoint, token="other")
