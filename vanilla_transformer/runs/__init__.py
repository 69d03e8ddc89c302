"""A run from recipe to finished folder: training, scores, curves, card, averaging and ablations."""
