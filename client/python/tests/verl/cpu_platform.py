"""verl on CPUs and gloo, for tests: VERL_USE_EXTERNAL_MODULES names this module, VERL_PLATFORM=cpu
chooses it."""

import contextlib
import types

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class _NoDevice(types.SimpleNamespace):
    def __getattr__(self, name):
        return lambda *arguments, **named: 0


def _returns(value):
    return lambda self, *arguments, **named: value


_DEVICE = _NoDevice(
    is_available=lambda: False,
    current_device=lambda: "cpu",
    get_device_name=lambda *_: "cpu",
    synchronize=lambda *_: None,
    mem_get_info=lambda *_: (0, 0),
)
_ANSWERS = {
    "is_available": True, "current_device": "cpu", "device_count": 1, "set_device": None, "synchronize": None,
    "set_allocator_settings": None, "empty_cache": None, "get_device_capability": (None, None),
    "communication_backend_name": "gloo", "visible_devices_envvar": "CUDA_VISIBLE_DEVICES", "profiler_start": None,
    "profiler_stop": None, "ray_resource_name": "CPU", "ray_noset_envvars": [], "is_ipc_supported": False, "cudart": None,
    "nvtx_range": contextlib.nullcontext(),
}  # fmt: skip


@PlatformRegistry.register(platform="cpu")
class PlatformCpu(PlatformBase):
    device_name = "cpu"
    vendor_name = "nvidia"
    device_module = property(lambda self: _DEVICE)
    locals().update({name: _returns(value) for name, value in _ANSWERS.items()})

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed
