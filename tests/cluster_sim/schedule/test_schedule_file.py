"""Schedules on disk are read back unchanged, and foreign files are refused by name."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_sim.schedule import file as schedule_file
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.file import equal, load, save
from cluster_sim.schedule.table import FIXED, FLOW, Codes, Edges, Flows, Resources, Schedule
from tests.support.damaged_files import check_damaged
from tests.support.random_schedules import on_one_link, schedules
from topologies.errors import InputError


def _with_flow() -> Schedule:
    return schedule(
        OpColumns(kind=[FIXED, FLOW], resource=[0, -1], duration_ps=[5, 0], size_bytes=[0, 9]),
        edges=Edges.from_pairs(2, [0], [1]),
        resources=Resources.table("dma", [0, 4], slots=[2, 0], capacity=[0, 10]),
        flows=Flows(*(np.array(c, np.int64) for c in ([1], [10], [0, 1], [1], [1]))),
        facts={"collective": "permute"},
    )


@given(schedule=schedules())
@settings(max_examples=40)
def test_there_and_back_is_the_same(
    schedule: Schedule, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("schedule") / "s.npz"
    save(schedule, path)
    assert equal(load(path), schedule)


def test_flows_and_start_edges_are_kept(tmp_path: Path) -> None:
    flow = _with_flow()
    save(flow, tmp_path / "flow.npz")
    assert equal(load(tmp_path / "flow.npz"), flow)
    schedule = on_one_link(2)
    edges = Edges.from_pairs(2, [0], [1], [1], [True])
    start = replace(schedule, edges=edges)
    save(start, tmp_path / "start.npz")
    assert equal(load(tmp_path / "start.npz"), start)
    assert not equal(start, replace(schedule, edges=Edges.from_pairs(2, [0], [1], [1])))


@pytest.mark.parametrize(
    "changed",
    [
        {"duration_ps": np.array([5, 6])},
        {"priority": np.array([0, 1], np.int32)},
        {"edges": Edges.from_pairs(2, [0], [1], [9])},
        {"resources": Resources.table("link", [0], [2])},
        {"resources": Resources.table("nic", [0], [1])},
        {"labels": {}},
        {"labels": {"rank": np.array([0, 0])}},
        {"labels": {"rank": Codes(np.array([0, 1]), ("a", "b"))}},
        {"facts": {"x": 1}},
    ],
    ids=lambda changed: f"{next(iter(changed))}",
)
def test_any_difference_is_seen(changed: dict) -> None:
    schedule = on_one_link(2)
    assert equal(schedule, on_one_link(2))
    assert not equal(schedule, replace(schedule, **changed))
    assert not equal(replace(schedule, **changed), schedule)


def test_an_interrupted_save_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(file: object, **_: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(on_one_link(2), tmp_path / "s.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no directory"):
        save(on_one_link(1), tmp_path / "none" / "s.npz")


def _stored(path: Path) -> dict[str, np.ndarray]:
    save(on_one_link(2), path)
    with np.load(path) as stored:
        return {key: stored[key] for key in stored.files}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schedule.duration_ps": np.array([5, -1])}, "op 1: duration_ps -1 is below 1"),
        ({"schedule.resource": np.array([0, 7], np.int32)}, "resource 7 is not one of 1"),
        ({"edges.dst": np.array([9], np.int32)}, "an edge leads to op 9, there are 2"),
        ({"schedule.extra": np.zeros(2)}, "unexpected keyword argument"),
        ({"header": np.frombuffer(b"{not json", np.uint8)}, "is not a schedule"),
        ({"header": np.frombuffer(b"[]", np.uint8)}, "is not a schedule"),
        ({"header": np.frombuffer(json.dumps({"names": {}}).encode(), np.uint8)}, "kinds"),
        ({"label.rank": np.zeros(3, np.int64)}, "label rank has 3 rows, there are 2 ops"),
        ({"edges.ptr": np.zeros(2, np.int64)}, "edges.ptr has 2 entries"),
    ],
    ids=lambda part: next(iter(part)) if isinstance(part, dict) else "",
)
def test_a_file_that_is_no_schedule_is_refused_by_name(
    tmp_path: Path, change: dict[str, np.ndarray], why: str
) -> None:
    path = tmp_path / "s.npz"
    np.savez(path, **{**_stored(path), **change})  # type: ignore[arg-type]
    with pytest.raises(InputError) as refused:
        load(path)
    assert why in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_missing_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    arrays = _stored(path)
    del arrays["edges.ptr"]
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is not a schedule that save wrote"):
        load(path)


def test_pickled_objects_are_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "sprung",))

    path = tmp_path / "s.npz"
    arrays = _stored(path)
    np.savez(path, **{**arrays, "schedule.kind": np.array([Trap()], object)})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is not a schedule"):
        load(path)
    assert not (tmp_path / "sprung").exists()


def test_a_file_that_unpacks_to_too_much_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.npz"
    save(on_one_link(2), path)
    monkeypatch.setattr(schedule_file, "LARGEST_BYTES", 100)
    with pytest.raises(InputError, match="the limit is 100"):
        load(path)


@given(cut=st.floats(0, 1), flip=st.integers(0, 255))
@settings(max_examples=60)
def test_no_damage_ends_in_anything_but_one_line(
    cut: float, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    path = folder / "s.npz"
    save(on_one_link(3), path)
    check_damaged(path, load, cut, flip)


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"schedule .* there is no such file in"):
        load(tmp_path / "none.npz")
    foreign = tmp_path / "foreign.npz"
    with zipfile.ZipFile(foreign, "w") as packed:
        packed.writestr("readme.txt", "hello")
    with pytest.raises(InputError, match="is not a schedule"):
        load(foreign)
