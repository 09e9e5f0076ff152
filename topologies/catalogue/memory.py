"""Memory of a chip that programs can use."""

from __future__ import annotations

from topologies.catalogue.catalogue import Catalogue


def usable_hbm_bytes(chip: str, catalogue: Catalogue) -> int:
    """Return the memory that the driver reports or, if unknown, that of the data sheet [B].

    A GB on NVIDIA's data sheets is nearly a GiB.

    >>> from topologies.catalogue.catalogue import shipped_catalogue
    >>> usable_hbm_bytes("b200", shipped_catalogue())
    192265846784
    """
    usable = "hbm_usable_bytes" if catalogue.has(chip, "hbm_usable_bytes") else "hbm_bytes"
    return catalogue.integer(chip, usable)
