"""Jobs that queue for two domains of four servers."""

from typing import Any

from hypothesis import strategies as st

CLUSTER = "trn2-ultraserver:2"  # two domains of four servers of 16 chips


def job(submit_min: float, servers: int, run_min: float, **more: Any) -> dict[str, Any]:
    times = {"submit": f"{submit_min}min", "time": f"{run_min}min"}
    return {**times, "chips": 16 * servers, **more}


WAITING = [job(0, 6, 60), job(1, 8, 60), job(2, 2, 30), job(3, 2, 120), job(4, 1, 10)]
JOBS = st.lists(
    st.builds(
        job, st.integers(0, 200), st.integers(1, 8), st.integers(1, 100), priority=st.integers(0, 2)
    ),
    min_size=1,
    max_size=12,
)
