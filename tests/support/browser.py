"""A headless browser for tests of pages: Chromium where the system has one."""

import re
import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WHY_NOT = "there is no chromium on this system"


def opened(page: Path, folder: Path, *flags: str) -> tuple[str, list[str]]:
    """Open a page with a new profile; returns its document after all scripts, and the console's."""
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={folder}", "--enable-logging=stderr", "--virtual-time-budget=4000",
            *flags, "--dump-dom", page.resolve().as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)
