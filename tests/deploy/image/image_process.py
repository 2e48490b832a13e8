"""Runs a command of an unpacked image as Kubernetes' strictest settings do: the root read-only, as a
numeric user, without any capability or new privileges.

    python3 image_process.py ROOT VOLUME [NAME=VALUE...] COMMAND...

NAME=VALUE are the image's environment. VOLUME is a folder that the command finds at /var/lib/sis, to write to. Needs root, and the right to
mount; exits with 77 where that is missing. A container runtime would do the same; those of the
distributions also want cgroups, which not every machine that runs tests lets them have.
"""

import ctypes
import os
import sys

USER = 65532
# Constants from sched.h, sys/mount.h and linux/prctl.h.
CLONE_NEWNS = 0x20000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38

_libc = ctypes.CDLL(None, use_errno=True)


def _check(status):
    if status != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _mount(source, target, flags):
    _check(_libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None))


def main():
    root, volume, *command = sys.argv[1:]
    environment = {"PATH": "/usr/bin"}
    while "=" in command[0]:
        name, _, environment[name] = command.pop(0).partition("=")
    try:
        _check(_libc.unshare(CLONE_NEWNS))
        _mount("none", "/", MS_REC | MS_PRIVATE)
        _mount(root, root, MS_BIND)
        _mount(root, root, MS_BIND | MS_REMOUNT | MS_RDONLY)
        for source, target in (("/proc", "proc"), ("/dev", "dev"), (volume, "var/lib/sis")):
            _mount(source, f"{root}/{target}", MS_BIND | MS_REC)
    except OSError as error:
        print(f"mounting is not permitted here: {error}", file=sys.stderr)
        sys.exit(77)
    with open("/proc/sys/kernel/cap_last_cap", encoding="utf-8") as last:
        capabilities = int(last.read()) + 1
    os.chroot(root)
    os.chdir("/")
    for capability in range(capabilities):
        _check(_libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    main()
