"""Pipeline schedules: the order in which a stage takes its microbatches through its chunks."""
