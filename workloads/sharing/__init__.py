"""Several training jobs on one cluster, whose collectives share links."""
