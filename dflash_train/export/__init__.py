"""A draft as a server loads it: config.json, model.safetensors, and what it was made from."""
