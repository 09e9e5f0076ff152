"""Hardware of a cluster as resources of a schedule: links, adapters, memories, and their costs."""
