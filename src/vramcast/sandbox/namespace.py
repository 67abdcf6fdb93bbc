"""The kernel's protection: a mount namespace in which every writable folder is an overlay over the real one.

Whatever a process in it writes lands in the scratch folder; the real files are a lower layer, which overlayfs never
writes, not even access times. What cannot be overlaid becomes read-only, so nothing is left unprotected:

    /            read-only; a folder with other mounts below it cannot be overlaid as one
    /home        overlay: reads /home, writes SCRATCH/3/upper
    /tmp         overlay: reads /tmp, writes SCRATCH/4/upper; SCRATCH itself is hidden
    /run         read-only, so that sockets can still be connected to
    /proc /dev   as they are

An ordinary user may do this since Linux 5.11, in a user namespace. `enter` is called once, in a process without
threads that was started for the purpose.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.sandbox import linux
from vramcast.sandbox.layer import Layer, write_layers

# File systems of the kernel's own, whose files are no files.
PSEUDO_FILE_SYSTEMS = frozenset(
    [
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "sysfs",
        "tracefs",
    ]
)
# File systems that cannot take what an overlay writes.
NO_UPPER_LAYER = frozenset(
    [
        "overlay",
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "9p",
        "vfat",
        "exfat",
        "fuseblk",
        "squashfs",
        "iso9660",
    ]
)
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # how mountinfo writes blanks
SHARED_MEMORY = "/dev/shm"
MOST_FOLDERS = 200  # of one folder that cannot be overlaid as a whole


class Refused(Exception):
    """This machine does not allow the namespace; the text says which step failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    path: str
    kind: str


def read_mounts() -> list[Mount]:
    """The mounts of this process, one per path: where several are stacked, the topmost."""
    found: dict[str, Mount] = {}
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        before, _, after = line.partition(b" - ")
        path = os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), before.split()[4]))
        found.pop(path, None)
        found[path] = Mount(path=path, kind=os.fsdecode(after.split()[0]))
    return list(found.values())


def file_system_of(path: str, mounts: list[Mount]) -> str:
    inside = [mount for mount in mounts if contains(mount.path, path)]
    return max(inside, key=lambda mount: len(mount.path)).kind if inside else ""


def contains(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def enter(scratch: str, needed: list[str]) -> list[Layer]:
    """Put this process behind overlays that write into `scratch`.

    `needed` are the folders without which a script is of no use: the working directory, home, the temporary folder.
    """
    as_user = not linux.can_administer()
    here = os.getcwd()
    try:
        _unshare(as_user)
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        cover = Cover(scratch, needed, as_user)
        cover.lay_overlays()
        write_layers(cover.scratch_itself, cover.overlays)
        cover.make_rest_read_only()
        _hide(scratch)
        os.chdir(here)
        if as_user and os.getuid() != 0:
            linux.drop_capabilities()
    except OSError as error:
        raise Refused(str(error)) from error
    unprotected = [
        path
        for path in needed
        if not any(contains(overlay.lower, path) for overlay in cover.overlays)
    ]
    if unprotected:
        raise Refused(f"{unprotected[0]} has other file systems mounted inside it")
    return cover.overlays


def _unshare(as_user: bool) -> None:
    user, group = os.getuid(), os.getgid()
    linux.enter_namespaces(linux.CLONE_NEWNS | (linux.CLONE_NEWUSER if as_user else 0))
    if as_user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _hide(scratch: str) -> None:
    """The script sees an empty folder where its own changes are kept."""
    linux.mount(
        "tmpfs",
        scratch,
        "tmpfs",
        linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV,
        "size=4k,mode=700",
    )


class Cover:
    """Lays overlays over all folders that can have one, and makes the rest read-only."""

    def __init__(self, scratch: str, needed: list[str], as_user: bool) -> None:
        self._scratch = scratch
        descriptor = os.open(scratch, os.O_PATH | os.O_CLOEXEC)
        self.scratch_itself = f"/proc/self/fd/{descriptor}"  # not what an overlay above it shows
        self._needed = needed
        self._options = ("userxattr",) if as_user else ("redirect_dir=on", "index=off")
        self._mounts = read_mounts()
        self.overlays: list[Layer] = []
        self._rest: list[str] = []  # mounts that are not covered as a whole

    def lay_overlays(self) -> None:
        for mount in sorted(self._mounts, key=lambda mount: mount.path):
            if self._is_left_alone(mount):
                continue
            if self._is_for_sockets(mount) or not self._cover(mount.path):
                self._rest.append(mount.path)

    def make_rest_read_only(self) -> None:
        for path in filter(os.path.exists, self._rest):
            linux.make_read_only(path)

    def _is_left_alone(self, mount: Mount) -> bool:
        in_kernel = any(contains(folder, mount.path) for folder in ("/proc", "/sys", "/dev"))
        return mount.kind in PSEUDO_FILE_SYSTEMS or (in_kernel and mount.path != SHARED_MEMORY)

    def _is_for_sockets(self, mount: Mount) -> bool:
        """A socket cannot be connected to through an overlay."""
        return mount.kind == "tmpfs" and contains("/run", mount.path)

    def _cover(self, folder: str) -> bool:
        """Whether one overlay could take the whole folder; otherwise its folders have one each, as far as possible."""
        inner = [
            mount.path
            for mount in self._mounts
            if mount.path != folder and contains(folder, mount.path)
        ]
        if not inner and self._overlay(folder):
            return True
        for child in self._folders_to_cover(folder):
            if child not in inner and not contains("/run", child):
                self._cover(child)
        return False

    def _folders_to_cover(self, folder: str) -> list[str]:
        try:
            with os.scandir(folder) as entries:
                folders = sorted(
                    entry.path for entry in entries if entry.is_dir(follow_symlinks=False)
                )
        except OSError:
            return []
        if len(folders) > MOST_FOLDERS or not self._has_mounts(folder):
            folders = [
                child for child in folders if any(contains(child, path) for path in self._needed)
            ]
        return folders

    def _has_mounts(self, folder: str) -> bool:
        return any(mount.path != folder and contains(folder, mount.path) for mount in self._mounts)

    def _overlay(self, folder: str) -> bool:
        number = len(self.overlays)
        changes = f"{self.scratch_itself}/{number}"
        upper, work = f"{changes}/upper", f"{changes}/work"
        for path in (upper, work):
            os.makedirs(path, exist_ok=True)
        try:
            lower = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            _copy_mode(folder, upper)
            self._mount_overlay(folder, f"/proc/self/fd/{lower}", upper, work)
        except OSError:
            return False
        finally:
            os.close(lower)
        self.overlays.append(Layer(lower=folder, upper=f"{self._scratch}/{number}/upper"))
        return True

    def _mount_overlay(self, folder: str, lower: str, upper: str, work: str) -> None:
        """Layers are named by descriptor: their paths may contain commas and colons, which are separators."""
        options = [f"lowerdir={lower}", f"upperdir={upper}", f"workdir={work}", *self._options]
        flags = linux.MS_NOSUID | linux.MS_NODEV
        try:
            linux.mount("overlay", folder, "overlay", flags, ",".join([*options, "volatile"]))
        except OSError:  # before Linux 5.10
            linux.mount("overlay", folder, "overlay", flags, ",".join(options))


def _copy_mode(folder: str, upper: str) -> None:
    """The top folder of an overlay has the mode of its upper layer: who may not write below still may not."""
    seen = os.stat(folder)
    mode = seen.st_mode & 0o7777
    os.chmod(upper, mode if os.access(folder, os.W_OK) else mode & ~0o222)
    if os.getuid() == 0:
        os.chown(upper, seen.st_uid, seen.st_gid)
    os.utime(upper, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def rename_folders_by_copy() -> None:
    """In a user namespace overlayfs refuses to rename a folder of the lower layer (EXDEV): copy it as `mv` would."""
    true_rename, true_replace = os.rename, os.replace

    def with_copy(true: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any, **where: Any) -> None:
            try:
                true(source, target, **where)
            except OSError as error:
                if (
                    error.errno != errno.EXDEV
                    or where
                    or not os.path.isdir(source)
                    or os.path.islink(source)
                ):
                    raise
                if os.path.isdir(target):
                    os.rmdir(target)  # as rename does: only where it is empty
                shutil.copytree(source, target, symlinks=True)
                shutil.rmtree(source)

        return rename

    os.rename, os.replace = with_copy(true_rename), with_copy(true_replace)
