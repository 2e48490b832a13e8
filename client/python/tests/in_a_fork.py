"""What goes on in a process that was forked."""

import multiprocessing


def in_a_fork(what):
    """What `what()` returns in a process that is forked from this one, or the error that it raises."""

    def send():
        try:
            sender.send(what())
        except Exception as error:
            sender.send(error)

    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=send)
    child.start()
    answered = receiver.poll(20)
    if not answered:
        child.kill()
    child.join()
    return receiver.recv() if answered else TimeoutError()
