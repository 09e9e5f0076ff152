"""The mutant that is active in this process, and the places that the process has reached."""

import os

ACTIVE = {"key": int(os.environ.get("MUTANT", -1))}
REACHED: set[int] = set()


def mutated(key: int) -> bool:
    """Return whether a mutant is active, and note once in a process that its place is reached.

    The note goes to a file, since a test may start processes of its own.
    """
    if key not in REACHED:
        REACHED.add(key)
        if notes := os.environ.get("MUTANTS_REACHED"):
            with open(notes, "a", encoding="utf-8") as file:
                file.write(f"{key}\n")
    return key == ACTIVE["key"]
