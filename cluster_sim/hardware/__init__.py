"""Hardware of a cluster as resources of a schedule: links, adapters, memory and their costs."""
