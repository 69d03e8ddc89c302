"""What a run is told: the recipe, its checks, presets and the recipes that come with the package."""
