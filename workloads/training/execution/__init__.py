"""Execution of a training program: lowered to a schedule, or evaluated for all ranks at once."""
