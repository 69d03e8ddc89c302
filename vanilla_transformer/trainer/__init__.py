"""How a model is trained: the Trainer and what it needs (batches, checkpoints, schedules, averages, sharding)."""
