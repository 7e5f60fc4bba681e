"""Programs that run one peer each, in a process (and, where needed, an interpreter) of its own.

They import the standard library and the peer, nothing else of ours than `protocol`.
"""
