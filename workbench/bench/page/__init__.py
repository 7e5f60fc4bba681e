"""The benchmark of the page in a real browser. It reaches behind the engine's door: it measures the whole workbench."""
