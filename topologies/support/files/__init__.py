"""Files: bounded readers of what users name, whole writers, tables, and results kept on disk."""
