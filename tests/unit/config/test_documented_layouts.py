from collections.abc import Callable
from pathlib import Path

import pytest

from icestream.config import Settings, load_settings

EXAMPLES = Path(__file__).parent / "examples"
AMAZON = {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-secret"}

Load = Callable[..., Settings]
Problems = Callable[..., list[str]]


def example(name: str) -> Settings:
    return load_settings(EXAMPLES / f"{name}.yaml", environ=AMAZON)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_documented_example_loads_as_it_stands(path: Path) -> None:
    assert load_settings(path, environ=AMAZON) != Settings()


def test_the_iceberg_layout_is_lifted_to_the_top() -> None:
    settings = example("iceberg")
    assert (settings.storage.type, settings.catalog.type, settings.catalog.uri) == (
        "iceberg",
        "rest",
        "http://localhost:8181",
    )
    assert (settings.object_store.type, settings.object_store.bucket) == ("s3", "danube-data")
    assert settings.wal.dir == Path("/var/lib/danube/wal")
    assert (settings.wal.max_file_size, settings.wal.sync_mode) == (67108864, "interval")
    assert (settings.writer.batch_size, settings.writer.flush_interval_ms) == (1000, 5000)
    assert (settings.reader.max_concurrent_reads, settings.reader.prefetch_size) == (10, 5)


def test_the_wal_cloud_layout_is_lifted_to_the_top() -> None:
    settings = example("wal_cloud")
    assert settings.wal.dir == Path("danube-data/wal")
    assert settings.wal.max_file_size == 536870912
    assert settings.wal.file_sync.interval_ms == 5000
    assert settings.wal.rotation.max_hours is None
    assert (settings.wal.retention.time_minutes, settings.wal.retention.size_mb) == (2880, 20480)
    assert (settings.uploader.enabled, settings.uploader.root_prefix) == (True, "/danube-data")
    assert settings.cloud.secret_key is not None
    assert settings.cloud.secret_key.get_secret_value() == "minioadmin123"
    assert settings.metadata.etcd_endpoint == ("127.0.0.1:2379",)


def test_references_in_the_amazon_example_take_the_environment() -> None:
    cloud = example("amazon_s3").cloud
    assert cloud.access_key is not None
    assert cloud.secret_key is not None
    assert (cloud.access_key.get_secret_value(), cloud.secret_key.get_secret_value()) == ("an-id", "a-secret")
    assert (cloud.profile, cloud.role_arn, cloud.session_token) == (None, None, None)


def test_placeholders_in_angle_brackets_are_just_values() -> None:
    assert example("azure_blob").cloud.account_name == "<account_name>"


def test_a_section_at_two_places_may_share_its_keys_out(load: Load) -> None:
    settings = load("wal_cloud: {wal: {commit_threads: 2}}\nwal: {max_producers: 5}\n")
    assert (settings.wal.commit_threads, settings.wal.max_producers) == (2, 5)


@pytest.mark.parametrize("second", ["a", "b"])
def test_a_key_at_two_places_is_an_error(problems: Problems, second: str) -> None:
    (sentence,) = problems(f"wal_cloud: {{wal: {{dir: a}}}}\nwal: {{dir: {second}}}\n")
    assert "wal.dir" in sentence
    assert "is the same setting as wal_cloud.wal.dir" in sentence


def test_two_names_of_one_setting_must_agree(load: Load, problems: Problems) -> None:
    assert load("wal: {dir: a, base_path: a}").wal.dir == Path("a")
    (sentence,) = problems("wal: {dir: a, base_path: b}")
    assert "wal.base_path" in sentence
    assert "is the same setting as wal.dir" in sentence
    (sentence,) = problems("wal: {max_file_size: 4096, rotation: {max_bytes: 8192}}")
    assert "wal.rotation.max_bytes" in sentence


def test_only_the_documented_sections_stand_under_a_documented_root(problems: Problems) -> None:
    (sentence,) = problems("wal_cloud: {writer: {batch_size: 5}}")
    assert "wal_cloud.writer" in sentence
    assert "allowed in wal_cloud: wal, uploader, cloud, metadata" in sentence


def test_another_kind_of_storage_is_refused(problems: Problems) -> None:
    (sentence,) = problems("storage: {type: segments}")
    assert sentence.endswith("is 'segments'; it takes iceberg")
