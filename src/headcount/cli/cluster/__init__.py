"""One command on several machines: its flags, and the commands that look at it and finish it."""
