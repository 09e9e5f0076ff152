"""Options in modules that import nothing large, so that the command line starts quickly."""
