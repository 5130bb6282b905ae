"""The journal and the proof as a terminal summary and progress.png."""
