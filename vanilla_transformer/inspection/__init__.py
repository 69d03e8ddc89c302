"""Looking into a model: what it attends to, as numbers (`attention_maps`) and as a picture (`plot_attention`)."""

from vanilla_transformer.inspection.attention import AttentionMaps, attention_maps, plot_attention

__all__ = ["AttentionMaps", "attention_maps", "plot_attention"]
