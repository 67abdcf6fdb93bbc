"""Running other people's scripts without harm: their files go into a scratch layer, their connections are counted.

process          start here: a child process, watched, and cleaned up after
child, session   the traced process's side, and what the two tell each other
layer            the scratch folder: what was written, replaced, deleted; keeping it; removing it
namespace        the kernel's protection: overlayfs in a mount namespace (Linux)
guard            the protection inside Python, with merged (files of two layers), guard_libraries, audit
landlock         behind the guard: the kernel refuses what Python does not see (Linux)
network          connections to other machines, counted or refused
linux            system calls that the standard library does not offer
"""
