"""Algorithms of collectives, each of which writes the messages between ranks."""
