import json
import subprocess
from collections.abc import Callable

from icestream.broker_process import BrokerProcess

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
Publish = Callable[[str, bytes], None]


def test_a_query_is_answered_as_a_table_and_as_json(icestream: Run, publish: Publish) -> None:
    publish("shop/orders", b'{"n": 1}\n{"n": 2}\n{"n": 39}\n')
    sql = "SELECT offset, payload->>'n' AS n FROM (SELECT offset, decode(payload)::json AS payload FROM shop.orders)"
    shown = icestream("sql", sql)
    assert (shown.returncode, shown.stderr) == (0, b"3 rows\n")
    assert [line.split() for line in shown.stdout.decode().splitlines() if "39" in line] == [["2", "39"]]
    lines = icestream("sql", sql, "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"offset": n, "n": v} for n, v in enumerate(["1", "2", "39"])]
    cut = icestream("sql", "-", "--max-rows", "2", stdin=sql.encode())
    assert cut.stderr.startswith(b"the first 2 rows")
    none = icestream("sql", "SELECT count(*) AS n FROM shop.orders", "--committed", "--json")
    assert json.loads(none.stdout) == {"n": 0}


def test_what_senders_wrote_does_not_control_the_terminal(icestream: Run, publish: Publish) -> None:
    hostile = "\x1b[31mred \x1b]0;title\x07 \x1b]8;;http://x\x1b\\\\link \0 \x9b2J \u202eevil"
    publish("shop/hostile", hostile.encode() + b"\n")
    sql = """SELECT decode(payload) AS text, [decode(payload)] AS list, 1 AS "\x1b[32mname" FROM shop.hostile"""
    shown = icestream("sql", "-", stdin=sql.encode())
    assert (shown.returncode, shown.stderr) == (0, b"1 row\n")
    lines = shown.stdout.decode().splitlines()
    assert [line for line in lines if not line.isprintable()] == []
    assert any(r"\x1b[32mname" in line for line in lines[:3])
    for said in (r"\x1b[31mred", r"\x1b]0;title\x07", r"\x1b]8;;http://x", r"\x00", r"\x9b2J", r"\u202eevil"):
        assert said in shown.stdout.decode()
    wrong = icestream("sql", "SELECT decode(payload)::int FROM shop.hostile")
    assert wrong.returncode == 1
    assert wrong.stderr.decode().rstrip("\n").isprintable()
    assert rb"convert string '\x1b[31mred \x1b]0;title\x07" in wrong.stderr
    row = json.loads(icestream("sql", "-", "--json", stdin=sql.encode()).stdout)
    assert row == {"text": hostile, "list": [hostile], "\x1b[32mname": 1}


def test_a_plan_keeps_its_lines(icestream: Run, publish: Publish) -> None:
    publish("shop/plan", b"x\n")
    shown = icestream("sql", "EXPLAIN SELECT count(*) FROM shop.plan")
    assert (shown.returncode, shown.stderr) == (0, b"1 row\n")
    assert r"\n" not in shown.stdout.decode()
    assert any(line.split() == ["│", "UNGROUPED_AGGREGATE", "│"] for line in shown.stdout.decode().splitlines())


def test_what_is_wrong_is_said_in_a_sentence(icestream: Run, broker: BrokerProcess) -> None:
    missing = icestream("sql", "SELECT * FROM shop.nothing")
    assert missing.returncode == 1
    assert b"shop/nothing" in missing.stderr
    assert b"Traceback" not in missing.stderr
    assert icestream("sql").returncode == 2
    twice = icestream("sql", "SELECT 1 AS a, 2 AS a", "--json")
    assert (twice.returncode, twice.stdout) == (1, b"")
    empty = icestream("sql", "SELECT * FROM shop.orders", "--catalog", "--data", str(broker.data_dir / "none"))
    assert empty.returncode == 1
    assert b"no table" in empty.stderr
