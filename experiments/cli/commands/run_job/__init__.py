"""``cluster-sim run-job``: a training job of weeks with failures, checkpoints and spares."""
