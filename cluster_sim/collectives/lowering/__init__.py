"""Lowering of messages between ranks to ops on links."""
