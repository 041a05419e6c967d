from collections.abc import Callable
from pathlib import Path

from icestream.config import Settings, load_with_origins

Load = Callable[..., Settings]


def test_the_file_wins_over_the_default(load: Load) -> None:
    assert load("wal: {sync_mode: os}").wal.sync_mode == "os"


def test_the_environment_wins_over_the_file(load: Load) -> None:
    assert load("wal: {sync_mode: os}", {"ICESTREAM_WAL__SYNC_MODE": "interval"}).wal.sync_mode == "interval"


def test_flags_win_over_everything(load: Load) -> None:
    environ = {"ICESTREAM_SERVER__FLIGHT_PORT": "2"}
    assert load("server: {flight_port: 1}", environ, server__flight_port=0).server.flight_port == 0


def test_a_flag_that_was_not_given_changes_nothing(load: Load) -> None:
    assert load("server: {flight_port: 1}", {}, server__flight_port=None).server.flight_port == 1


def test_the_layers_meet_key_by_key_and_not_section_by_section(load: Load) -> None:
    wal = load(
        "wal: {file_sync: {interval_ms: 7}, commit_threads: 3}", {"ICESTREAM_WAL__FILE_SYNC__MAX_BATCH_BYTES": "8192"}
    ).wal
    assert (wal.file_sync.interval_ms, wal.file_sync.max_batch_bytes, wal.commit_threads) == (7, 8192, 3)


def test_a_higher_layer_wins_by_any_name_of_a_setting(load: Load) -> None:
    environ = {"ICESTREAM_WAL__DIR": "from-environment", "ICESTREAM_WAL__ROTATION__MAX_BYTES": "8192"}
    settings = load("wal: {base_path: from-file, max_file_size: 4096}", environ)
    assert settings.wal.dir == Path("from-environment")
    assert settings.wal.max_file_size == 8192


def test_environment_text_becomes_the_right_type(load: Load) -> None:
    environ = {
        "ICESTREAM_TOPICS__AUTO_CREATE": "false",
        "ICESTREAM_WAL__ROTATION__MAX_HOURS": "1.5",
        "ICESTREAM_METADATA__ETCD_ENDPOINT": "a:2379, b:2379",
        "ICESTREAM_CATALOG__PROPERTIES": '{"s3.endpoint": "http://minio:9000"}',
        "ICESTREAM_CLOUD__PROFILE": "",
    }
    settings = load("cloud: {profile: work}", environ)
    assert settings.topics.auto_create is False
    assert settings.wal.rotation.max_hours == 1.5
    assert settings.metadata.etcd_endpoint == ("a:2379", "b:2379")
    assert settings.catalog.properties == {"s3.endpoint": "http://minio:9000"}
    assert settings.cloud.profile is None


def test_variables_of_commands_and_clients_are_not_settings(load: Load) -> None:
    names = ("BROKER", "CONFIG", "TOKEN", "SOAK", "CACHE")
    assert load("", {f"ICESTREAM_{name}": "x" for name in names}) == Settings()


def test_each_value_knows_where_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("wal:\n  base_path: logs\n")
    loaded = load_with_origins(path, {"data_dir": "d"}, {"ICESTREAM_WAL__SYNC_MODE": "os"})
    assert loaded.origins == {
        "wal.dir": f"{path}, line 2",
        "wal.sync_mode": "environment variable ICESTREAM_WAL__SYNC_MODE",
        "data_dir": "flag",
    }
