"""Laws that answers keep whatever the numbers are: relations between two lines of commands."""
