"""Domains of quantities hold in overlays, cluster files and the shipped rows alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.catalogue.reader import NAME, check_peaks, check_row, domain, is_reference
from topologies.clusters.yaml_file import cluster_from_file
from topologies.errors import InputError

FILE = """
chip: {{like: trn2, {value}}}
scale_up: {{shape: switch, size: 4, bandwidth: 1GB/s, latency: 1us}}
"""
HEADER = "part,quantity,value,unit,grade,source\n"


def test_every_shipped_row_lies_in_its_domain() -> None:
    for row in shipped_catalogue().rows:
        check_row(row, f"{row.part} {row.quantity}")
    for part in shipped_catalogue().parts():
        check_peaks(shipped_catalogue().entries(part))


def test_every_unit_has_a_domain() -> None:
    for unit in {row.unit for row in shipped_catalogue().rows} - {NAME}:
        assert domain("a quantity of nobody", unit).least >= 0


def test_a_quantity_of_trainium_that_no_module_names_is_kept_for_reference() -> None:
    """What no command reads is marked, so that an alternative of it is refused."""
    root = Path(__file__).parents[2]
    folders = ("cluster_sim", "topologies", "workloads", "experiments")
    modules = [path for folder in folders for path in (root / folder).rglob("*.py")]
    named = {word for path in modules for word in re.findall(r"\w+", path.read_text())}
    put_together = re.compile(r"\w+_(peak|matmul)|copy_\w+")
    rows = [row for row in shipped_catalogue().rows if re.match(r"trn|inf2|rainier", row.part)]
    unread = [
        f"{row.part}.{row.quantity}"
        for row in rows
        if row.quantity not in named
        and not put_together.fullmatch(row.quantity)
        and not is_reference(row.part, row.quantity, row.unit)
    ]
    assert len(rows) > 200
    assert unread == []


WRONG = [
    ("bf16_peak", "1TFLOP/s", "less than bf16_matmul of"),
    ("bf16_peak", "-600TFLOP/s", "it must lie between"),
    ("bf16_peak", "0TFLOP/s", "it must lie between"),
    ("bf16_peak", "1e30FLOP/s", "it must lie between"),
    ("bf16_matmul", "-1TFLOP/s", "it must lie between"),
    ("bf16_matmul", "0TFLOP/s", "it must lie between"),
    ("bf16_matmul", "700TFLOP/s", "less than bf16_matmul of"),
    ("collective_efficiency", "5", "it must lie between 0.001 and 1"),
    ("collective_efficiency", "0", "it must lie between"),
    ("hbm_bandwidth", "0TB/s", "it must lie between"),
    ("hbm_bandwidth", "1B/s", "it must lie between 1e+09 B/s"),
    ("hbm_bandwidth", "1e30B/s", "it must lie between"),
    ("hbm_bytes", "0GB", "it must lie between"),
    ("cores", "7.5", "it must be a whole number"),
    ("link_latency", "1e20s", "it must lie between"),
]


@pytest.mark.parametrize(("quantity", "value", "message"), WRONG)
def test_a_value_outside_its_domain_is_refused_in_a_cluster_file(
    tmp_path: Path, quantity: str, value: str, message: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FILE.format(value=f"{quantity}: {value}"))
    with pytest.raises(InputError) as mistake:
        cluster_from_file(path, shipped_catalogue())
    assert str(mistake.value).startswith(f"{path}: chip.")
    assert message in str(mistake.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("trn2,collective_efficiency,5,ratio", "it must lie between 0.001 and 1"),
        ("trn2,hbm_bandwidth,1,B/s", "it must lie between"),
        ("trn2,bf16_peak,1,TFLOP/s", "less than bf16_matmul"),
        ("trn2,cores,1.5,count", "it must be a whole number"),
        ("efa-v3,oversubscription,0.5,ratio", "it must lie between 1 and 1000"),
    ],
)
def test_a_value_outside_its_domain_is_refused_in_an_overlay(
    tmp_path: Path, row: str, message: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"{HEADER}{row},measured,me\n")
    with pytest.raises(InputError, match=message):
        shipped_catalogue().with_overlay(path)


def test_a_stated_capacity_is_also_what_programs_can_use(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FILE.format(value="hbm_bytes: 40GB").replace("trn2", "h100"))
    numbers = cluster_from_file(path, shipped_catalogue()).catalogue
    assert numbers is not None
    assert numbers.value("h100", "hbm_usable_bytes") == 40e9
