"""Help text of speculative decoding, which ``serve`` and ``fleet`` share."""

SPECULATION = (
    "Tokens that a draft proposes for one pass to verify, the probability that each is accepted, "
    "and the draft: a model, or its time as a share of the model's (0: a look-up)"
)
