"""Pipeline schedules: the order in which a stage takes its microbatches through its chunks."""

from workloads.training.plan.schedules.registry import (
    all_schedules,
    pipeline_schedule,
    schedule_names,
)
from workloads.training.plan.schedules.schedule import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Passes,
    PipelineSchedule,
    in_order,
)

__all__ = [
    "BACKWARD",
    "FORWARD",
    "WEIGHT",
    "Passes",
    "PipelineSchedule",
    "all_schedules",
    "in_order",
    "pipeline_schedule",
    "schedule_names",
]
