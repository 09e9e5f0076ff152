"""The Cluster: a machine described by a few numbers, from which all else is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topologies.catalogue.catalogue import LIKE, Catalogue, shipped_catalogue
from topologies.shapes.basic import Shape, check_chips, check_size
from topologies.shapes.scale_out import ScaleOut
from topologies.support import display
from topologies.support.errors import InputError

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class Cluster:
    """Equal scale-up domains, which a scale-out fabric joins if there are several.

    The global number of a chip is ``domain * chips_per_domain + local number``. No graph is made
    before :meth:`graph` is called.

    Attributes
    ----------
    name : str
        Name as the user wrote it, such as ``"trn2-ultraserver:16"``.
    shape : Torus, FullMesh, Switch, Tiered or Clos
        Shape of one scale-up domain.
    chip : str
        Catalogue part of the chips; empty for plain shapes.
    domains : int
        Number of scale-up domains.
    scale_out : ScaleOut or None
        Fabric that joins the servers, if there is one.
    chips_per_server : int
        Chips of one server, which share its network adapters and its host.
    plain : bool
        Whether times follow the α–β model exactly, without efficiencies or properties of chips.
    catalogue : Catalogue
        Catalogue with the numbers of the chip.
    """

    name: str
    shape: Shape
    chip: str = ""
    domains: int = 1
    scale_out: ScaleOut | None = None
    chips_per_server: int = 1
    plain: bool = False
    catalogue: Catalogue | None = field(default=None, repr=False)

    @property
    def numbers(self) -> Catalogue:
        """Catalogue with the numbers of the chip; the shipped one for a cluster without."""
        return self.catalogue or shipped_catalogue()

    def graph(self) -> nx.MultiDiGraph[int | str]:
        """Make the graph of chips, switches, adapters and links for networkx.

        >>> from topologies.clusters.names import cluster
        >>> cluster("ring:4", bandwidth="1GB/s", latency="1us").graph().number_of_edges()
        8
        """
        from topologies.views.graph import graph  # networkx and pandas are slow to load

        return graph(self)

    def __post_init__(self) -> None:
        check_size(f"{self.name}: a number of domains", self.domains)
        check_chips(f"cluster {self.name}:", (self.domains, self.shape.chips))
        if self.domains > 1 and self.scale_out is None:
            raise InputError(
                f"{self.name} has {self.domains} domains and no scale-out fabric to join them. "
                "Use one domain, or add a row 'fabric' of its machine to an overlay."
            )
        if self.shape.chips % self.chips_per_server:
            raise InputError(
                f"{self.name}: a domain of {self.shape.chips} chips is not made of servers "
                f"of {self.chips_per_server}"
            )

    @property
    def measured_chip(self) -> str:
        """Chip whose measurements hold for this one, that it is like where a user adds it."""
        shipped = shipped_catalogue().has(self.chip, "hbm_bytes")
        return self.chip if shipped else self.numbers.name(self.chip, LIKE, self.chip)

    @property
    def _facts(self) -> dict[str, object]:
        return {
            "chips": f"{self.chips:,}",
            "chip": self.chip or "(plain shape)",
            "scale-up domains": f"{self.domains:,} of {self.shape.chips} chips",
            "servers": f"{self.servers:,}",
        }

    def __repr__(self) -> str:
        return display.line("Cluster", {"name": self.name, **self._facts})

    def _repr_html_(self) -> str:
        return display.table(self.name, self._facts)

    @property
    def chips_per_domain(self) -> int:
        """Number of chips in one scale-up domain."""
        return self.shape.chips

    @property
    def chips(self) -> int:
        """Number of chips in the cluster."""
        return self.domains * self.shape.chips

    @property
    def servers(self) -> int:
        """Number of servers in the cluster."""
        return self.chips // self.chips_per_server
