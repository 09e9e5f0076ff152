"""Algorithms of collectives: each writes the messages between ranks, without regard to links."""
