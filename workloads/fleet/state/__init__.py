"""State of a running fleet: units, services, queues and the ledger of chip-hours."""
