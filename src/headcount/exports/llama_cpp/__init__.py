"""What a model is in llama.cpp: its layers, its tokenizer, and llama.cpp itself as a runtime."""
