"""A fuzzer that stays: input formats, options, random plans and collectives, killed sweeps."""
