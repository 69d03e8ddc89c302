"""Using models: lines of text to lines of text. What `generate()` itself has is in generation_vanilla_transformer.py."""
