"""Output of commands: tables and JSON, clusters side by side, remedies for refused plans."""
