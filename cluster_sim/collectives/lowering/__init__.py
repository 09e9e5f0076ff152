"""Lowering of collectives: from messages between ranks to ops on links."""
