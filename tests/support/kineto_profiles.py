"""Profiles of ranks in the format of PyTorch's profiler, written kernel by kernel."""

import gzip
import json

SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"

STREAM = 20


class Profile:
    """A profile of one rank, written call by call; its clock begins with the first launch."""

    def __init__(self, rank, world=2):
        self.rank, self.world, self.correlation = rank, world, 0
        self.events = []

    def add(self, category, name, ts, dur, **args):
        """Add a complete event; kernels lie on the track of their stream."""
        tid = args["stream"] if category == "kernel" else 4037
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 4037, "tid": tid, "ts": ts,
             "dur": dur, "args": args}
        )  # fmt: skip

    def kernel(self, name, launched, ts, dur, stream=7, **args):
        """Add a launch and its kernel."""
        self.correlation += 1
        self.add("cuda_runtime", "cudaLaunchKernelExC", launched, 4, correlation=self.correlation)
        place = {"stream": stream, "device": 0, "correlation": self.correlation}
        self.add("kernel", name, ts, dur, **place, **args)

    def facts(self, name, elements, peer=None):
        """Metadata that PyTorch writes into ``record_param_comms`` and into its kernel."""
        ends = {"send": "Dst Rank", "recv": "Src Rank"}
        return {
            "Collective name": name, "dtype": "BFloat16", "In msg nelems": elements,
            "Out msg nelems": elements, "In split size": "[]", "Out split size": "[]",
            "Group size": self.world, "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(self.world))),
            **({ends[name]: peer} if name in ends else {}),
        }  # fmt: skip

    def call(self, name, at, elements, peer=None):
        """Add the host's call alone; returns its facts."""
        facts = self.facts(name, elements, peer)
        place = {} if peer is None else {"Rank": peer}
        self.add("cpu_op", "record_param_comms", at, 8, **facts, **place)
        return facts

    def document(self):
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
            "distributedInfo": {
                "backend": "nccl", "rank": self.rank, "world_size": self.world, "pg_count": 1,
                "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": self.world,
                               "ranks": str(list(range(self.world)))}],
            },
            "traceEvents": self.events,
        }  # fmt: skip

    def write(self, folder):
        path = folder / f"rank{self.rank}.json.gz"
        path.write_bytes(gzip.compress(json.dumps(self.document()).encode()))
        return path


def exchange(rank, elements=10**6):
    """A ring's step: ``batch_isend_irecv`` of one send and one receive, in one kernel."""
    profile, peer = Profile(rank), 1 - rank
    profile.kernel("flash_fwd_kernel", 1000, 1010, 100)
    profile.call("send", 1020, elements, peer)
    profile.call("recv", 1030, elements, peer)
    profile.kernel(SENDRECV, 1045, 1110, 60, STREAM)  # launched as the group ends: no facts
    profile.kernel("flash_fwd_kernel", 1060, 1170, 100)
    return profile
