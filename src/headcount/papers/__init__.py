"""The founding papers as lists of commands: what each ran, what it found, and how that is read off our own runs."""
