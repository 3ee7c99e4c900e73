"""Reading models: configs and their classes, number formats, adapters, quantised weights, and the sign on cut folders."""
