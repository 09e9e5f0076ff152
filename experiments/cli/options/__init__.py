"""Options of commands: those that several commands share, and how fields become options."""
