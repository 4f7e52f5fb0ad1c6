"""`formers serve`: a local page to watch runs and to try models, and an API that programs for OpenAI's can call."""
