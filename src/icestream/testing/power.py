"""The states in which a power cut may leave a simulated disk: one at random, or all of them.

Random states lean to those that break programs: nothing arrived, all arrived, a prefix in the order of the writes, one
sector missing, one sector alone, and any mixture.
"""

import random
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise, product
from math import prod
from typing import TypeVar

from icestream.testing.content import Content, Size, Version
from icestream.testing.tree import NameLoss, Tree


class Tearing(StrEnum):
    """The unit that a power cut leaves whole."""

    SECTOR = "sector"
    BYTE = "byte"
    """No real disk does this. It makes tests reach every position within a frame."""


def random_state(tree: Tree, rng: random.Random, tearing: Tearing, loss: NameLoss) -> Tree:
    found = tree.after_cut(tree.random_survivors(rng, loss))
    for number, file in found.files().items():
        found.nodes[number] = file.copy() if file.is_durable else _random_content(file, rng, tearing)
    return found


def all_states(tree: Tree, limit: int, tearing: Tearing, loss: NameLoss) -> Iterator[Tree]:
    """Every state, each file's with each other's; a ValueError if these are more than `limit`."""
    trees = [tree.after_cut(survivors) for survivors in tree.all_survivors(loss)]
    count = sum(prod(_count(file, tearing) for file in found.files().values()) for found in trees)
    if count > limit:
        raise ValueError(f"a power cut now may leave {count} states, more than {limit}")
    for found in trees:
        files = found.files()
        for contents in product(*(_all_contents(file, tearing) for file in files.values())):
            yield Tree({**found.nodes, **dict(zip(files, contents, strict=True))}).copy()


def _random_content(file: Content, rng: random.Random, tearing: Tearing) -> Content:
    oldest = {sector: versions[0] for sector, versions in file.versions.items()}
    newest = {sector: versions[-1] for sector, versions in file.versions.items()}
    size = file.sizes[-1]
    match rng.randrange(6):
        case 0:  # nothing arrived
            size, picks = file.sizes[0], oldest
        case 1:  # all of it arrived
            picks = newest
        case 2:  # it arrived in the order of the writes, up to a moment, and the write of that moment is torn
            moment = rng.randint(file.sizes[0].time, file.time)
            size = _newest(file.sizes, moment)
            picks = {sector: _newest(found, moment - rng.randrange(2)) for sector, found in file.versions.items()}
        case 3:  # all but one sector arrived
            picks = newest | _one_at_random(file, rng, tearing)
            size = _random_size(file, rng, tearing)
        case 4:  # one sector alone arrived
            picks = oldest | _one_at_random(file, rng, tearing)
        case _:
            picks = {sector: _random_version(file, sector, rng, tearing) for sector in file.versions}
            size = _random_size(file, rng, tearing)
    return file.after_cut(size, picks)


def _one_at_random(file: Content, rng: random.Random, tearing: Tearing) -> dict[int, Version]:
    if not file.versions:
        return {}
    sector = rng.choice(list(file.versions))
    return {sector: _random_version(file, sector, rng, tearing)}


def _random_version(file: Content, sector: int, rng: random.Random, tearing: Tearing) -> Version:
    versions = file.versions[sector]
    index = rng.randrange(len(versions))
    if tearing is Tearing.SECTOR or index == 0:
        return versions[index]
    return _torn(versions[index - 1], versions[index], rng.randint(0, file.sector_bytes))


def _random_size(file: Content, rng: random.Random, tearing: Tearing) -> Size:
    if rng.randrange(2):
        return file.sizes[-1]
    index = rng.randrange(len(file.sizes))
    chosen = file.sizes[index]
    if tearing is Tearing.BYTE and index and chosen.size > file.sizes[index - 1].size:
        return Size(chosen.time, rng.randint(file.sizes[index - 1].size, chosen.size))
    return chosen


def _count(file: Content, tearing: Tearing) -> int:
    return len(set(file.sizes)) * prod(len(_possible(file, sector, tearing)) for sector in file.versions)


def _all_contents(file: Content, tearing: Tearing) -> Iterator[Content]:
    choices = [_possible(file, sector, tearing) for sector in file.versions]
    for size in sorted(set(file.sizes)):
        for picked in product(*choices):
            yield file.after_cut(size, dict(zip(file.versions, picked, strict=True)))


def _possible(file: Content, sector: int, tearing: Tearing) -> list[Version]:
    """All that the sector may hold, each once."""
    found = list(file.versions[sector])
    if tearing is Tearing.BYTE:
        for old, new in pairwise(file.versions[sector]):
            found += [_torn(old, new, cut) for cut in range(1, file.sector_bytes)]
    if file.truncations:  # these tell apart versions of the same bytes
        return list(dict.fromkeys(found))
    return list({version.data: version for version in found}.values())


_Timed = TypeVar("_Timed", Version, Size)


def _newest(found: tuple[_Timed, ...], moment: int) -> _Timed:
    """The last that is not younger than `moment`; the oldest if all are."""
    return next((one for one in reversed(found) if one.time <= moment), found[0])


def _torn(old: Version, new: Version, cut: int) -> Version:
    return Version(new.time, new.data[:cut] + old.data[cut:])
