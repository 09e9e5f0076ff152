"""A loader of object files: it lays their sections out in memory and writes the addresses in.

LLVM takes a tenth of a second to load itself, four times as long as numpy's arrays, only to copy a
few sections and to write some addresses into them. Code for x86-64 that may lie anywhere holds
nothing but whole 64-bit addresses, so this is done here; whatever else an object file may hold is
left to LLVM. Layouts and numbers are those of the System V ABI for x86-64, chapters 4 and 5.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

HEADER = struct.Struct("<16xHH20xQ10xHHH")
"""Header of the file: type, machine; where section headers begin; their size, number, names."""
SECTION = struct.Struct("<IIQQQQIIQQ")
"""Header of a section, see :class:`Section`."""
SYMBOL = struct.Struct("<IBBHQQ")
"""A symbol: where its name begins, kind, visibility, section, offset in the section, size."""
ADDRESS = struct.Struct("<QQq")
"""A relocation with addend: where to write the address, symbol and kind, and what to add."""
MAGIC = b"\x7fELF\x02\x01\x01"
"""First bytes of an ELF file of 64 bits, little-endian, version 1."""
RELOCATABLE, X86_64 = 1, 62  # ET_REL, EM_X86_64
CONTENT, SYMBOLS, ADDRESSES, EMPTY = 1, 2, 4, 8  # SHT_PROGBITS, _SYMTAB, _RELA, _NOBITS
IN_MEMORY = 2  # SHF_ALLOC
WHOLE_ADDRESS = 1  # R_X86_64_64
UNDEFINED, FIRST_RESERVED = 0, 0xFF00  # SHN_UNDEF, SHN_LORESERVE


class Unsuited(Exception):  # noqa: N818
    """Error for an object file, or a system, that needs a linker."""


class Section(NamedTuple):
    """Header of a section, as the file has it."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    item: int


class Placed(NamedTuple):
    """Code in memory, which stays there as long as this object lives.

    Attributes
    ----------
    address : int
        Where the function begins.
    memory : mmap
    """

    address: int
    memory: mmap.mmap


def place(binary: bytes, name: str) -> Placed:
    """Load an object file into memory and find one of its functions.

    Raises
    ------
    Unsuited
        Where the file is not for x86-64, holds relocations other than whole addresses, or refers to
        a symbol that neither it nor the C library has; and where the system forbids to run code
        from such memory.
    """
    if sys.platform != "linux" or not binary.startswith(MAGIC):
        raise Unsuited
    try:
        return _placed(binary, name.encode())
    except (struct.error, IndexError, ValueError, OSError) as fault:
        raise Unsuited from fault


def _placed(binary: bytes, name: bytes) -> Placed:
    kind, machine, start, size, number, _ = HEADER.unpack_from(binary)
    if (kind, machine, size) != (RELOCATABLE, X86_64, SECTION.size):
        raise Unsuited
    sections = [Section(*SECTION.unpack_from(binary, start + row * size)) for row in range(number)]
    offsets, end = _layout(sections)
    memory = mmap.mmap(-1, max(end, 1))
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    # Copy the sections; those without content, for variables, are zeros already.
    for row, offset in offsets.items():
        section = sections[row]
        if section.kind != EMPTY:
            memory[offset : offset + section.size] = binary[
                section.offset : section.offset + section.size
            ]
    # Write the addresses of symbols wherever the code refers to them.
    places = {row: base + offset for row, offset in offsets.items()}
    (table,) = (section for section in sections if section.kind == SYMBOLS)
    symbols = list(_symbols(binary, table, sections[table.link], places))
    for where, address in _addresses(binary, sections, offsets, symbols):
        memory[where : where + 8] = struct.pack("<Q", address % 2**64)
    _make_executable(base, end)
    return Placed(next(address for called, address in symbols if called == name), memory)


def _layout(sections: list[Section]) -> tuple[dict[int, int], int]:
    """Return the offset in memory of each section that is there at run time, and where they end."""
    offsets, end = {}, 0
    for row, section in enumerate(sections):
        if section.flags & IN_MEMORY and section.kind in (CONTENT, EMPTY):
            end += -end % max(section.alignment, 1)
            offsets[row] = end
            end += section.size
    return offsets, end


def _symbols(
    binary: bytes, table: Section, names: Section, places: dict[int, int]
) -> Iterator[tuple[bytes, int]]:
    """Yield name and address of each symbol; 0 for one that stands for nothing in memory."""
    for entry in range(table.offset, table.offset + table.size, SYMBOL.size):
        name_offset, _, _, section, value, _ = SYMBOL.unpack_from(binary, entry)
        begin = names.offset + name_offset
        name = binary[begin : binary.index(b"\0", begin)]
        if section == UNDEFINED and name:
            yield name, _address_in_c_library(name)
        elif section >= FIRST_RESERVED or section not in places:
            yield name, 0
        else:
            yield name, places[section] + value


def _address_in_c_library(name: bytes) -> int:
    try:
        function = ctypes.CDLL(None)[name.decode()]
    except AttributeError:
        raise Unsuited from None
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _addresses(
    binary: bytes,
    sections: list[Section],
    offsets: dict[int, int],
    symbols: list[tuple[bytes, int]],
) -> Iterator[tuple[int, int]]:
    """Yield the addresses to be written into the sections, each after its offset in memory."""
    for section in sections:
        if section.kind != ADDRESSES or section.info not in offsets:
            continue
        for entry in range(section.offset, section.offset + section.size, ADDRESS.size):
            where, symbol_and_kind, addend = ADDRESS.unpack_from(binary, entry)
            address = symbols[symbol_and_kind >> 32][1]
            if symbol_and_kind & 0xFFFFFFFF != WHOLE_ADDRESS or not address:
                raise Unsuited
            yield offsets[section.info] + where, address + addend


def _make_executable(base: int, size: int) -> None:
    """Make memory executable and no longer writable."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(base, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect")
