"""Questions to the simulator over HTTP: the commands' own options and answers, in JSON."""
