"""What makes numbers wrong without an error: a tokenizer or labels that are not the model's, texts cut off, near copies."""
