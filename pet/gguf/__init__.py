"""GGUF, the file that llama.cpp reads: a model (`model.write_model`) or an adapter (`adapter.write_adapter`)."""
