"""Every error this project raises on purpose, in one tree.

::

    WorkbenchError
    ├── ConfigurationError            a setting is wrong or does not fit the machine
    │   └── KVCacheTooLargeError      the KV pool asked for does not fit in memory
    ├── ModelLoadError                a model file is missing, truncated or not understood
    ├── ReplayFileError               a saved run is missing, damaged, or of another version
    ├── BackendUnavailableError       a kernel backend or a library cannot run here
    ├── RequestRejectedError          refused at the door; the engine is unharmed
    │   ├── InvalidSamplingParamsError    a sampling parameter is out of range (HTTP 400)
    │   ├── InvalidSpeculationParamsError a speculation parameter is out of range, or cannot be met (HTTP 400)
    │   ├── InvalidPromptError            empty prompt or a token id outside the vocabulary (HTTP 400)
    │   ├── PromptTooLongError            can never fit in the context or in the pool (HTTP 400)
    │   └── QueueFullError                too many requests wait already (HTTP 429)
    └── EngineError                   an accepted request could not be completed
        ├── KVCacheExhaustedError     it outgrew the whole pool while decoding
        └── EngineStoppedError        the engine was shut down, or is not running

A message gives the value, the limit and the remedy.
"""


class WorkbenchError(Exception):
    """Root of the tree: catch this to catch everything raised on purpose."""


class ConfigurationError(WorkbenchError):
    """A setting is wrong, unknown, or does not fit the machine."""


class KVCacheTooLargeError(ConfigurationError):
    """The KV pool asked for does not fit in the memory that is free."""


class ModelLoadError(WorkbenchError):
    """A model file is missing, truncated, or of a kind that is not understood."""


class ReplayFileError(WorkbenchError):
    """A saved run is missing, truncated, damaged, or of a version that is not understood."""


class BackendUnavailableError(WorkbenchError):
    """A kernel backend or an optional library cannot run on this machine."""


class RequestRejectedError(WorkbenchError):
    """The request was refused at the door. Nothing was queued; other requests are unharmed."""

    http_status = 400


class InvalidSamplingParamsError(RequestRejectedError):
    """A sampling parameter is out of its range."""


class InvalidSpeculationParamsError(RequestRejectedError):
    """A speculation parameter is out of its range, or names a method that this engine cannot offer."""


class InvalidPromptError(RequestRejectedError):
    """The prompt is empty or holds a token id outside the vocabulary."""


class PromptTooLongError(RequestRejectedError):
    """The prompt can never fit: longer than the context, or than the whole KV pool."""


class QueueFullError(RequestRejectedError):
    """Too many requests wait already."""

    http_status = 429


class EngineError(WorkbenchError):
    """An accepted request could not be completed."""


class KVCacheExhaustedError(EngineError):
    """A request, alone in the engine, outgrew the whole KV pool."""


class EngineStoppedError(EngineError):
    """The engine was shut down, or never came up."""
