import pyarrow as pa

from icestream.query.dataset import with_unique_keys

KIND = pa.map_(pa.string(), pa.string())


def test_maps_without_repetitions_stay_as_they_are() -> None:
    for rows in ([], [None], [[], None, [("a", "1")]], [[("a", "1"), ("b", "2")], [("b", "1"), ("a", "1")]]):
        maps = pa.array(rows, KIND)
        assert with_unique_keys(maps) is maps


def test_the_first_value_of_a_repeated_key_counts() -> None:
    maps = pa.array([[("z", "0"), ("z", "9")], None, [("a", "1"), ("b", "2"), ("a", "3")], [], [("a", None)]], KIND)
    assert with_unique_keys(maps).to_pylist() == [[("z", "0")], None, [("a", "1"), ("b", "2")], [], [("a", None)]]
    assert with_unique_keys(maps.slice(1, 2)).to_pylist() == [None, [("a", "1"), ("b", "2")]]
    last = maps.slice(3)
    assert with_unique_keys(last) is last


def test_maps_in_structs_and_lists_have_unique_keys_too() -> None:
    twice, once = [("a", "1"), ("a", "2")], [("a", "1")]
    nested = pa.struct([pa.field("number", pa.int64()), pa.field("tags", pa.list_(KIND))])
    rows = [None, {"number": 1, "tags": [twice, None]}, {"number": 2, "tags": None}, {"number": 3, "tags": [once]}]
    expected = [None, {"number": 1, "tags": [once, None]}, *rows[2:]]
    values = pa.array(rows, nested)
    found = with_unique_keys(values)
    assert found.type.equals(nested)
    found.validate(full=True)
    assert found.to_pylist() == expected
    assert with_unique_keys(values.slice(1, 2)).to_pylist() == expected[1:3]
    sound = values.slice(2)
    assert with_unique_keys(sound) is sound
