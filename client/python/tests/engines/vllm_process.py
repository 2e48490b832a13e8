"""A vLLM server in a process of its own, for tests over HTTP."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import requests
import vllm
from safetensors.torch import save_file

# Commands read the version of a package "vllm"; that for CPUs is called otherwise.
_METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm.__version__}+cpu\n"


def start(test_class, folder, command, *options, **environment):
    """Its port, once it listens, tens of seconds later. It ends with the class's tests. `command` is a
    program beside Python's own, and what comes before the address."""
    metadata = folder / "site/vllm.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(_METADATA)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program, *first = command
    line = [pathlib.Path(sys.executable).with_name(program), *first, "--host", "127.0.0.1", "--port", str(port), *options]
    surroundings = {**os.environ, "PYTHONPATH": str(metadata.parents[1]), **environment}
    surroundings.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    with open(folder / "serve.log", "w") as log:
        process = subprocess.Popen(line, env=surroundings, stdout=log, stderr=subprocess.STDOUT, process_group=0)
    test_class.addClassCleanup(_end, process)
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return port
        time.sleep(1)
    raise AssertionError((folder / "serve.log").read_text()[-4000:])


def _end(process):
    """With its engine, a process of its own."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def load_weights(address, folder, named):
    """New ones, by way of a folder. TRL's own way, NCCL, needs a GPU."""
    save_file({name: value.detach().contiguous() for name, value in named}, f"{folder}/model.safetensors")
    call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    requests.post(f"{address}/collective_rpc", json=call, timeout=600).raise_for_status()
