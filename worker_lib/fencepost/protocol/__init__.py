"""The pure core: every rule of the protocol, each in the file that is named after it.

No clock, no ids, no I/O: time, randomness and identifiers are arguments.
"""
