import json
import subprocess
from collections.abc import Callable

from icestream.testing.broker_process import BrokerProcess

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
