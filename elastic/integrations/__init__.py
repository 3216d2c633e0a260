"""Callbacks for the frameworks that train for a script: hugging_face, lightning and accelerate.

Import each by its own name (`from elastic.integrations.hugging_face import ElasticCallback`), because each needs a
library that the others do not. They share `elastic.integrations.checkpoint`: the framework writes and reads its own
checkpoint, and that is what bftd keeps.
"""
