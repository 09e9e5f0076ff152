"""A small process that runs a command, so that the memory of the command alone is measured.

Linux counts the memory of a process from before it takes on its program, when it is still a copy of
the one that starts it, which in a benchmark may hold gigabytes.
"""

import json
import os
import sys
import time


def main(output: str, errors: str, *command: str) -> int:
    """Run a command with its output in files; print its status, its wall time, and what it used."""
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files = [
        (os.POSIX_SPAWN_OPEN, stream, path, write, 0o644)
        for stream, path in ((1, output), (2, errors))
    ]
    begun = time.perf_counter()
    process = os.posix_spawnp(command[0], command, os.environ, file_actions=files)
    _, status, usage = os.wait4(process, 0)
    wall_s = time.perf_counter() - begun
    used = usage.ru_utime, usage.ru_stime, wall_s, usage.ru_maxrss * 1024
    print(json.dumps([os.waitstatus_to_exitcode(status), *used]))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
