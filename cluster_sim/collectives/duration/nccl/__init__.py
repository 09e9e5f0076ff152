"""NVIDIA's machines: what NCCL asks of ports, which protocol it picks, and how long that takes."""
