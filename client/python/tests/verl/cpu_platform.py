"""verl on CPUs and gloo, for tests: VERL_USE_EXTERNAL_MODULES names this module, VERL_PLATFORM=cpu
chooses it."""

import contextlib
import types

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class _NoDevice(types.SimpleNamespace):
    def __getattr__(self, name):
        return lambda *arguments, **named: 0


@PlatformRegistry.register(platform="cpu")
class PlatformCpu(PlatformBase):
    device_name = "cpu"
    vendor_name = "nvidia"

    @property
    def device_module(self):
        return _NoDevice(
            is_available=lambda: False,
            current_device=lambda: "cpu",
            get_device_name=lambda *_: "cpu",
            synchronize=lambda *_: None,
            mem_get_info=lambda *_: (0, 0),
        )

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def set_device(self, index):
        pass

    def synchronize(self, index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, message):
        yield

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "CPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None
