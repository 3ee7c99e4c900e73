"""What graphs of ONNX and OpenVINO have in common: how they are traced, what lies beside them, how they are compared."""
