"""Names that no tenant can have."""

import random
from collections.abc import Iterator

from icestream.config.telemetry import RESERVED_NAMESPACES as RESERVED


def hostile_names() -> Iterator[str]:
    """1,000 names that no tenant can have: path tricks, other alphabets, control characters, reserved, overlong."""
    source = random.Random(7)
    tricks = ["..", ".", "", "/", "\\", "../..", "a/b", "a\\b", "a/../b", "..\\a", "a/", "/a", "%2e%2e", "a%2fb", "~"]
    tricks += ["a b", " a", "a ", "a\n", "a\r\nx: y", "\0", "a\0b", "a\tb", "-a", "--data", ".hidden", "a:b", "a*", "*"]
    tricks += ["'; drop table x", '"a"', "a;b", "$HOME", "${x}", "`id`", "a|b", "<a>", "a?b", "a#b", "a@b", "a=b"]
    tricks += ["\xe4", "\u0430cme", "\uff41cme", "acme\u200b", "acme\u202e", "acme\u0301", "\U0001f4a5", "\ud800"]
    tricks += ["\u0130", "\u017f", "\u212a"]
    tricks += [*RESERVED, *(name.upper() for name in RESERVED), "_", "_system", "__init__", "_metadata"]
    yield from tricks
    bad = [chr(code) for code in (*range(0x2D), 0x2F, *range(0x3A, 0x41), *range(0x5B, 0x5F), 0x60, *range(0x7B, 0xC0))]
    bad += ["\u0430", "\u2028", "\ufeff", "\U0001f600", "\u0660"]
    for number in range(1000 - len(tricks)):
        if number % 10 == 0:
            yield "a" * source.randint(101, 5000)
        else:
            plain = "".join(source.choices("abcxyz019_.-", k=source.randint(0, 20)))
            place = source.randint(0, len(plain))
            yield plain[:place] + source.choice(bad) + plain[place:]
