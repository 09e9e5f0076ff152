"""Logs of requests as other tools write them."""

MOONCAKE = [
    {"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1]},
    {"timestamp": 3052, "input_length": 2287, "output_length": 316, "hash_ids": [0, 42]},
]

TURNS = (("human", "x" * 400), ("gpt", "y" * 80), ("human", "thanks"))
CHAT = [
    {"id": "a", "conversations": [{"from": who, "value": text} for who, text in TURNS]},
    {"id": "b", "conversations": [{"from": "human", "value": "alone"}]},
]
