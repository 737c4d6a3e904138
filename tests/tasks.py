"""What tests have other processes do; imported there by name, and so without what takes seconds."""

import gc
import os
import signal
import struct
import warnings
from multiprocessing.connection import Connection

from dpexp.training import progress
from dpexp.types import ConfigError, MissingData


class Odd(Exception):
    """Cannot be read by another process: it has two arguments, and keeps one."""

    def __init__(self, first, second):
        super().__init__(first)


def work(task):
    """Do as the task says."""
    match task:
        case "refused":
            raise ConfigError("Expected epochs > 0; got -1.")
        case "odd":
            raise Odd("only half", 2)
        case "dies":  # within a message, of which some has arrived
            sent = next(each for each in gc.get_objects() if type(each) is Connection)
            os.write(sent.fileno(), struct.pack("!i", 100) + b"some")
            os.kill(os.getpid(), signal.SIGKILL)
        case "says":
            warnings.warn("said before it", stacklevel=1)
            progress.say("its examples are few")
    return f"{task} done"


def graded(words):
    """Give a score by the words; a cell lacks its data, and one of two seeds is lower."""
    if "eps=1" in words:
        raise MissingData("digits is not here")
    rate = next(float(word.partition("=")[2]) for word in words if word.startswith("optimizer.lr"))
    return 60 + 100 * rate + ("epochs=1" in words) - ("seed=1" in words)
