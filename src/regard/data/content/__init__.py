"""Content: generators of the data of the pretrained models, which only tasks and pages import."""
