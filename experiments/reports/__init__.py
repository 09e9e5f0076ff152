"""Run directories and the pages that tell a run to people."""
