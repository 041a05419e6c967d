"""TLS, and users with passwords."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.etcd.certificates import make_certificates
from tests.servers import require

from icestream.config import Settings
from icestream.metadata.etcd import messages as m
from icestream.metadata.etcd.client import AccessDeniedError
from icestream.metadata.etcd.store import EtcdMetadataStore
from icestream.model.errors import InvalidRequestError, UnavailableError
from icestream.storage.facade import open_store
from icestream_servers import EtcdServer
from icestream_servers.etcd import administer

PATIENCE_SECONDS = 60
PASSWORD = "open sesame"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Lets only known certificates in, and of those only users with a password."""
    require("etcd")
    folder = tmp_path_factory.mktemp("guarded-etcd")
    tls = make_certificates(folder / "certificates")
    with EtcdServer(folder / "server", tls=tls, root_password=PASSWORD) as server:
        yield server


def test_settings_alone_lead_into_a_guarded_etcd(guarded: EtcdServer) -> None:
    with open_store(Settings(**guarded.settings())) as store:
        revision = store.create("/settings", b"1")
        with store.watch("/settings", start_revision=revision) as watch:
            assert [event.value for event in watch.wait(PATIENCE_SECONDS)] == [b"1"]
        lease = store.lease(60)
        lease.keep_alive()
        lease.revoke()


def test_a_client_without_a_certificate_is_not_let_in(guarded: EtcdServer) -> None:
    options = guarded.options(cert_file=None, key_file=None, timeout_seconds=0.5)
    with EtcdMetadataStore(options) as store, pytest.raises(UnavailableError):
        store.get("/a")


def test_a_server_of_another_authority_is_not_trusted(guarded: EtcdServer, tmp_path: Path) -> None:
    other = make_certificates(tmp_path)
    with (
        EtcdMetadataStore(guarded.options(ca_file=other.ca_file, timeout_seconds=0.5)) as store,
        pytest.raises(UnavailableError, match=r"(?i)handshake|certificate|ssl"),
    ):
        store.get("/a")


def test_a_certificate_file_that_is_not_there_is_named(guarded: EtcdServer, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"gone\.pem"):
        EtcdMetadataStore(guarded.options(ca_file=tmp_path / "gone.pem"))


def test_a_wrong_password_is_a_final_error_that_does_not_show_it(guarded: EtcdServer) -> None:
    options = guarded.options(password="wrong password")
    with EtcdMetadataStore(options) as store, pytest.raises(AccessDeniedError) as raised:
        store.get("/a")
    assert not raised.value.retryable
    assert "wrong password" not in str(raised.value) + repr(options)


def test_no_user_at_all_is_refused(guarded: EtcdServer) -> None:
    with EtcdMetadataStore(guarded.options(user=None)) as store:
        with pytest.raises(AccessDeniedError):
            store.put("/a", b"")
        with pytest.raises(AccessDeniedError), store.watch("/a", start_revision=1) as watch:
            watch.wait(PATIENCE_SECONDS)


def test_a_token_that_etcd_no_longer_knows_is_replaced(guarded: EtcdServer) -> None:
    with EtcdMetadataStore(guarded.options()) as store, store.watch("/token") as watch:
        first = store.put("/token", b"1")
        guarded.restart()  # forgets all tokens
        store.compare_and_swap("/token", first, b"2")
        assert [next(watch).value for _ in range(2)] == [b"1", b"2"]


def test_a_user_with_a_role_for_a_prefix_needs_nothing_beside_it(guarded: EtcdServer) -> None:
    root = guarded.options()
    permission = m.Permission(permType=m.Permission.READWRITE, key=b"/mine", range_end=b"/minf")
    administer(root, "Auth/RoleAdd", m.AuthRoleAddRequest(name="mine"), m.AuthRoleAddResponse)
    grant = m.AuthRoleGrantPermissionRequest(name="mine", perm=permission)
    administer(root, "Auth/RoleGrantPermission", grant, m.AuthRoleGrantPermissionResponse)
    administer(root, "Auth/UserAdd", m.AuthUserAddRequest(name="me", password="me"), m.AuthUserAddResponse)
    role = m.AuthUserGrantRoleRequest(user="me", role="mine")
    administer(root, "Auth/UserGrantRole", role, m.AuthUserGrantRoleResponse)
    mine = guarded.options(user="me", password="me", prefix="/mine")
    with EtcdMetadataStore(mine) as store, store.watch("/a") as watch:
        first = store.create("/a", b"1")
        store.compare_and_swap("/a", first, b"2")
        assert [entry.value for entry in store.list("")] == [b"2"]
        assert store.delete("/a")
        assert [next(watch).kind for _ in range(3)] == ["put", "put", "delete"]
    with EtcdMetadataStore(guarded.options(user="me", password="me")) as store:
        with pytest.raises(AccessDeniedError):
            store.get("/a")
        with pytest.raises(AccessDeniedError):
            store.watch("/a")


def test_a_user_is_no_obstacle_where_none_is_asked_for(etcd_server: EtcdServer) -> None:
    with EtcdMetadataStore(etcd_server.options(user="root", password="x", prefix="/unguarded")) as store:
        store.put("/a", b"")
        assert store.delete("/a")
