import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from icestream.config import SettingProblem, SettingsError, load_settings

Problems = Callable[..., list[str]]


def test_a_bad_value_names_key_place_value_and_what_is_allowed(problems: Problems, tmp_path: Path) -> None:
    assert problems("wal:\n  sync_mode: sometimes\n") == [
        f"wal.sync_mode ({tmp_path}/broker.yaml, line 2) is 'sometimes'; it takes one of always, interval, os"
    ]


def test_a_value_out_of_bounds_names_the_bounds_and_the_unit(problems: Problems) -> None:
    (sentence,) = problems("wal: {rotation: {max_bytes: 5}}")
    assert "wal.rotation.max_bytes" in sentence
    assert "is 5; it takes an integer of bytes from 4096 (4 KiB) to 8589934592 (8 GiB)" in sentence


def test_all_problems_are_told_at_once(problems: Problems) -> None:
    found = problems(
        "wal: {sync_mode: x, commit_threads: 0}\nnothing: 1\nlog: {level: loud}\n",
        {"ICESTREAM_SERVER__HOSTT": "h"},
        reader__prefetch_size="many",
    )
    assert len(found) == 6


def test_an_unknown_key_suggests_the_nearest_and_lists_the_allowed(problems: Problems) -> None:
    (sentence,) = problems("log: {levle: info}")
    assert "log.levle" in sentence
    assert sentence.endswith("is not a known key (did you mean log.level?); allowed in log: level, format")


def test_a_key_in_the_wrong_section_is_found(problems: Problems) -> None:
    (sentence,) = problems("flight_port: 1")
    assert "did you mean server.flight_port?" in sentence


def test_an_unknown_flag_suggests_the_nearest(problems: Problems) -> None:
    assert "did you mean server.flight_port?" in problems(server__flightport=1)[0]
    assert "allowed here: data_dir, server" in problems(sever__flight_port=1)[0]
    assert "wal (flag) is not a known key" in problems(wal={})[0]


def test_an_unknown_environment_variable_is_an_error(problems: Problems) -> None:
    (sentence,) = problems("", {"ICESTREAM_LOG__LEVLE": "info"})
    assert sentence == (
        "ICESTREAM_LOG__LEVLE is not a known environment variable (did you mean ICESTREAM_LOG__LEVEL?); "
        "allowed: ICESTREAM_LOG__LEVEL, ICESTREAM_LOG__FORMAT"
    )
    (sentence,) = problems("", {"ICESTREAM_QQQQ": "info"})
    assert "names begin with: ICESTREAM_DATA_DIR, ICESTREAM_SERVER, " in sentence
    (sentence,) = problems("", {"ICESTREAM_WAL": "{}"})
    assert "ICESTREAM_WAL__DIR" in sentence


def test_a_mapping_in_the_environment_must_be_json(problems: Problems) -> None:
    (sentence,) = problems("", {"ICESTREAM_CATALOG__PROPERTIES": "password=hunter2"})
    assert "as a JSON object" in sentence
    assert "hunter2" not in sentence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server: {max_topics: true}", "is true; it takes an integer of topics from 1 to 10000000"),
        ("server: {host: null}", "is null; it takes text"),
        ("wal: {dir: ''}", "is ''; it takes a path"),
        ("data_dir: 5", "data_dir"),
        ("wal: {rotation: {max_hours: .nan}}", "is nan; it takes a number of hours above 0 and up to 87840, or null"),
        ("server: {flight_port: 65536}", "it takes a port up to 65535; 0 takes a free port"),
        ("metadata: {etcd_endpoint: nowhere}", "it takes an address `host:port`"),
        ("wal: 5", "must be a section with keys under it: dir, "),
        ("catalog: {properties: {a: {b: c}}}", "it takes a mapping of text to text"),
        ("topics: {auto_create: maybe}", "is 'maybe'; it takes true or false"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(problems: Problems, text: str, expected: str) -> None:
    (sentence,) = problems(text)
    assert expected in sentence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server: {max_message_bytes: 100, max_batch_bytes: 10}", "must not exceed server.max_batch_bytes"),
        ("server: {max_in_flight_bytes: 100}", "server.max_batch_bytes must not exceed server.max_in_flight_bytes"),
        ("server: {http_port: 8815}", "server.http_port"),
        ("catalog: {type: rest}", "catalog.uri must be set when catalog.type is rest"),
        ("object_store: {type: azblob}", "catalog.warehouse must be set"),
        ("cloud: {backend: s3}", "cloud.root must be set when cloud.backend is s3"),
        ("cloud: {access_key: a}", "cloud.secret_key must be set too"),
        ("object_store: {secret_key: a}", "object_store.access_key must be set too"),
        ("cloud: {anonymous: true, access_key: a, secret_key: b}", "cloud.anonymous"),
        ("cloud: {credentials_json: '{}', credentials_path: x}", "cannot be set together with cloud.credentials_path"),
        ("uploader: {enabled: true}", "while cloud.backend is unset"),
        (
            "{uploader: {enabled: true, max_object_mb: 50001}, cloud: {backend: s3, root: 's3://b', part_mb: 5}}",
            "is 50001 and cannot be more than 49500",
        ),
        ("metadata: {etcd_endpoint: 'a:1', in_memory: true}", "choose one store"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(problems: Problems, text: str, expected: str) -> None:
    (sentence,) = problems(text)
    assert expected in sentence


def test_doors_may_all_take_free_ports_or_be_shut(tmp_path: Path) -> None:
    flags = {f"server.{door}_port": number for door, number in (("flight", 0), ("http", 0), ("danube", -1))}
    assert load_settings(None, {**flags, "data_dir": tmp_path}, {}).server.danube_port == -1


def test_the_port_of_a_door_that_does_not_exist_yet_takes_no_port_from_the_others(tmp_path: Path) -> None:
    settings = load_settings(None, {"server.http_port": 6650, "data_dir": tmp_path}, {})
    assert settings.server.http_port == settings.server.danube_port


def test_an_undefined_variable_hides_no_other_problem_and_adds_none(problems: Problems) -> None:
    found = problems("catalog: {type: rest, uri: '${CATALOG}'}\nlog: {level: loud}")
    assert len(found) == 2
    assert "refers to the environment variable CATALOG, which is not set" in found[0]


def test_a_long_value_is_cut_in_the_message(problems: Problems) -> None:
    (sentence,) = problems(f"wal: {{sync_mode: {'x' * 5000}}}")
    assert len(sentence) < 400


def test_the_error_carries_its_problems_also_through_pickling() -> None:
    error = SettingsError([SettingProblem("a.b", "flag", "a.b (flag) is wrong")])
    copy = pickle.loads(pickle.dumps(error))
    assert copy.problems == error.problems
    assert str(copy) == "a.b (flag) is wrong"
