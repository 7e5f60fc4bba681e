"""The kernels' own benchmark. Alone in bench it reaches behind the engine's door: kernels are what it measures."""
