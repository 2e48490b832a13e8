"""Runs functions in a forked process."""

import faulthandler
import functools
import multiprocessing
import subprocess
import sys
import unittest

FORK_WITH_A_CHANNEL = """
import os
import grpc
ready = grpc.channel_ready_future(grpc.insecure_channel("localhost:1"))
try:
    ready.result(timeout=0.2)
except grpc.FutureTimeoutError:
    pass
if os.fork() == 0:
    os._exit(0)
os._exit(0)
"""


@functools.cache
def grpc_lets_fork():
    """Whether a process with a channel can fork. With Debian 13's build of gRPC it waits for ever."""
    try:
        subprocess.run([sys.executable, "-c", FORK_WITH_A_CHANNEL], stderr=subprocess.DEVNULL, timeout=20, check=True)
    except subprocess.TimeoutExpired:
        return False
    return True


def skip_unless_grpc_lets_fork():
    if not grpc_lets_fork():
        raise unittest.SkipTest("this build of gRPC lets no process fork that has a channel")


def in_a_fork(what):
    """Returns the result of `what()` in a process forked from this one, or the error that it raises."""
    skip_unless_grpc_lets_fork()

    def send():
        try:
            sender.send(what())
        except Exception as error:
            sender.send(error)

    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=send)
    # A fork that hangs ends the test, with the place where it hangs.
    faulthandler.dump_traceback_later(30, exit=True)
    child.start()
    faulthandler.cancel_dump_traceback_later()
    answered = receiver.poll(60)
    if not answered:
        child.kill()
    child.join()
    return receiver.recv() if answered else TimeoutError()
