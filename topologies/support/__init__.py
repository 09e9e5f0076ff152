"""Support of all rooms: arguments, options, units, arrays, display, errors and files."""
