"""Tasks for language models: running text, conversations, multiple choice, last words."""
