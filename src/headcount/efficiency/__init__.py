"""What a model costs: FLOPs, parameters, memory and seconds."""
