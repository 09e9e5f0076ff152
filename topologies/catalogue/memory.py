"""Memory of a chip that programs can have."""

from __future__ import annotations

from topologies.catalogue.catalogue import Catalogue


def usable_hbm_bytes(chip: str, catalogue: Catalogue) -> int:
    """Memory that the driver reports where it is known, else as printed on the data sheet [B].

    Printed GB of NVIDIA's chips are nearly GiB.

    Examples
    --------
    >>> from topologies.catalogue.catalogue import shipped_catalogue
    >>> usable_hbm_bytes("b200", shipped_catalogue())
    192265846784
    """
    usable = "hbm_usable_bytes" if catalogue.has(chip, "hbm_usable_bytes") else "hbm_bytes"
    return catalogue.integer(chip, usable)
