"""The questions: experiment scripts, studies, validation and the command line."""
