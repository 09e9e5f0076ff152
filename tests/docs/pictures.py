"""Draw the pictures of the documents again and say which look different now.

``python -m tests.docs.pictures [NAME…]``. Every picture of the gallery is drawn by the command that
its header names, and compared with the one in the repository pixel by pixel; exit status 1 says
that one changed visibly. ``make gallery`` writes the new ones down.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from tools.gallery import DOCS, PICTURES, SHOWN, draw

VISIBLE = 0.004
"""Share of pixels that differ clearly from which on a change is told."""
CLEAR = 40
"""Difference of a colour's part, of 255, that an eye sees."""


def difference(before, after):
    """Return the share of pixels that differ clearly, 1 for pictures of different sizes."""
    with Image.open(before) as old, Image.open(after) as new:
        if abs(old.width - new.width) > 2 or abs(old.height - new.height) > 2:
            return 1.0
        size = (min(old.width, new.width), min(old.height, new.height))
        corner = (0, 0, *size)
        one, other = (np.asarray(each.convert("RGB").crop(corner), int) for each in (old, new))
    return float((np.abs(one - other).max(-1) > CLEAR).mean())


def changes(docs, names, redraw=draw):
    """Names of pictures that are drawn again, each with the share of its pixels that changed."""
    for shown in SHOWN:
        picture = docs / PICTURES / f"{shown.name}.png"
        if picture.exists() and (not names or shown.name in names):
            with tempfile.TemporaryDirectory() as folder:
                yield shown.name, difference(picture, redraw(shown, Path(folder)))


def main(names):
    """Compare all pictures, or those that are named; 1 if any changed visibly."""
    changed = 0
    for name, share in changes(DOCS, names):
        visible = share > VISIBLE
        changed += visible
        sys.stdout.write(f"{name}: {f'{share:.1%} of it changed' if visible else 'same'}\n")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
