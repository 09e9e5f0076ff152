"""Programs for developers of the simulator; they run in a checkout and are in no wheel."""
