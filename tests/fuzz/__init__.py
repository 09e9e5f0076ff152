"""A fuzzer of input formats, options, random plans and collectives, and killed sweeps."""
