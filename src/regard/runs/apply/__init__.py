"""The task verbs applied to a run: translate, generate, transcribe, classify."""
