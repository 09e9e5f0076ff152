"""Run directories, and the pages that present a run to people."""
