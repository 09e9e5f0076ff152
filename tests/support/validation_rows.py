"""Rows of measurements as text, for the tests of validation."""

from experiments.validation.reading.rows import read_text

COLLECTIVES = "collective,cluster,chips,size_bytes,time_s,mine\n"
TRAINING = "name,cluster,chips,layers,hidden,heads,seq,tp,pp,dp,global_batch,iteration_s\n"


def rows_of(text):
    return read_text(text, "mine.csv")


def training_row(**cells):
    """Values of a row of a toy model on DGX A100, but for the cells."""
    names = TRAINING.strip().split(",")
    plain = dict.fromkeys(names, "") | {
        "name": "toy", "cluster": "dgx-a100", "chips": 8, "layers": 4, "hidden": 1024, "heads": 16,
        "seq": 1024, "iteration_s": 1.0,
    }  # fmt: skip
    merged = plain | cells
    text = ",".join(merged) + "\n" + ",".join(map(str, merged.values()))
    return rows_of(text).rows[0].values
