"""Files and shipped tables of measurements: columns, rows, and the machines that rows name."""
