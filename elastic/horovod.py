"""The imports of a Horovod script, as `import elastic.horovod`; see elastic.backends.horovod.script."""

from elastic.backends.horovod.script import ElasticSampler, TorchState, step

__all__ = ["ElasticSampler", "TorchState", "step"]
