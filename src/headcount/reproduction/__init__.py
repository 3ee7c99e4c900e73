"""The founding papers as lists of commands: what each ran, what it found, how that is read off our own runs. No torch."""
