"""The process ends, and the power fails, at every step of an upload: no hole, and nothing is sent twice."""

import os
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.fault.cloud.uploads import DIRECTORY, TOPIC, World

from icestream.metadata import keys
from icestream.model.enums import SyncMode
from icestream.model.errors import UnavailableError
from icestream.storage.cloud.log_source import NOTES_FILE
from icestream.testing import SimulatedCrash

RUNS = 5_000 if os.environ.get("ICESTREAM_SOAK") else 120


def one_topic(world: World) -> None:
    """Some cycles of every kind: the first, one over several segments, one cut at the largest size, a small one."""
    world.publish(3)
    world.upload()
    world.publish(40)
    world.upload()
    world.publish(1)
    world.upload()


def test_a_crash_at_every_step_of_a_cycle_leaves_no_hole_and_sends_nothing_again() -> None:
    whole = World(seed=1)
    before = whole.steps
    one_topic(whole)
    steps = range(before + 1, whole.steps + 1)
    whole.check()
    assert {"store finish, done", "notes replace", "metadata transaction, done"} <= set(whole.step_names)
    for step in steps:
        world = World(seed=1)
        world.crash_at = step
        with pytest.raises(SimulatedCrash):
            one_topic(world)
        world.crash()
        world.publish(5)  # so that a new object would be another one than that which was begun
        world.upload()
        world.check()


def test_a_second_crash_while_the_first_is_made_good_changes_nothing() -> None:
    whole = World(seed=2)
    before = whole.steps
    whole.publish(12)
    whole.upload()
    for first in range(before + 1, whole.steps + 1):
        for second in range(1, 12):
            world = World(seed=2)
            world.crash_at = first
            world.publish(12)
            with pytest.raises(SimulatedCrash):
                world.upload()
            world.crash()
            world.crash_at = world.steps + second
            try:
                world.upload()
            except SimulatedCrash:
                world.crash()
                world.upload()
            world.check()


def taken_over() -> World:
    """A new owner finds three sound objects that nobody has described, and its log goes on behind them."""
    world = World(seed=4, max_object_bytes=1_500)
    world.publish(4)
    world.upload()
    head, described = world.head(), world.described()
    world.publish(20)
    world.upload()
    for one in world.described()[len(described) :][3:]:
        del world.objects[one.key]
    for one in world.described()[len(described) :]:
        world.metadata.delete(keys.cloud_object(TOPIC, one.first_offset))
    world.metadata.put(keys.cloud_head(TOPIC), replace(head, epoch=2).to_bytes())
    world.disk.on_operation = None
    world.disk.remove(DIRECTORY / NOTES_FILE)
    world.start()
    world.publish(5)
    return world


def test_a_new_owner_that_crashes_at_any_step_describes_what_was_left_and_sends_none_of_it() -> None:
    whole = taken_over()
    before = whole.steps
    whole.upload()
    steps = range(before + 1, whole.steps + 1)
    whole.check()
    for step in steps:
        world = taken_over()
        world.crash_at = step
        with pytest.raises(SimulatedCrash):
            world.upload()
        world.crash()
        world.upload()
        world.check()


def test_an_error_at_every_step_is_made_good_by_the_next_try() -> None:
    whole = World(seed=3)
    before = whole.steps
    one_topic(whole)
    for step in range(before + 1, whole.steps + 1):
        world = World(seed=3)
        world.fail_at = step
        world.publish(44)
        try:
            world.upload()
        except (UnavailableError, OSError):
            world.publish(3)
            world.upload()
        world.check()


def seldom(world: World, rng: random.Random, action: Callable[[], object]) -> None:
    """Do it, perhaps with a crash on the way."""
    if rng.random() < 0.35:
        world.crash_at = world.steps + rng.randint(1, 25)
    try:
        action()
    except SimulatedCrash:
        world.crash()
        world.check(complete=False)
    world.crash_at = None


@pytest.mark.parametrize("mode", list(SyncMode))
def test_any_sequence_of_publishing_uploading_pruning_and_crashing_keeps_what_is_promised(mode: SyncMode) -> None:
    for seed in range(RUNS // len(SyncMode) + 1):
        rng = random.Random(f"{mode} {seed}")
        world = World(seed=seed, sync_mode=mode, max_object_bytes=rng.choice([500, 3_000, 100_000]))
        for _ in range(rng.randint(3, 12)):
            match rng.choice(["publish", "publish", "upload", "cycle", "prune", "crash"]):
                case "publish":
                    world.publish(rng.randint(1, 25))
                case "upload":
                    seldom(world, rng, world.upload)
                case "cycle":
                    seldom(world, rng, world.uploader.cycle)
                case "prune":
                    world.log.prune(world.head().uploaded_end)
                case "crash":
                    world.crash()
        world.upload()
        world.check()
