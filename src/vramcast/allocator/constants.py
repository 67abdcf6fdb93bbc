"""Sizes that PyTorch's CUDA caching allocator is built around.

Copied from c10/core/AllocatorConfig.h of torch 2.13 under the names given in the comments; a test compares them with
the header of the installed torch. The 20 MiB segment of the large pool is a setting now, see `settings`.
"""

from __future__ import annotations

from vramcast.units import GiB, MiB

MIN_BLOCK_BYTES = 512  # kMinBlockSize: every request is rounded up to a multiple of this
SMALL_REQUEST_MAX_BYTES = 1 * MiB  # kSmallSize: larger requests go to the large pool
SMALL_SEGMENT_BYTES = 2 * MiB  # kSmallBuffer: what the small pool takes from the driver at a time
OWN_SEGMENT_MIN_BYTES = 10 * MiB  # kMinLargeAlloc: requests from here on get a segment of their own
SEGMENT_ROUNDING_BYTES = 2 * MiB  # kRoundLarge: those segments are rounded up to this
DEFAULT_LARGE_SEGMENT_BYTES = 20 * MiB  # large_segment_size_: for requests of 1 to 10 MiB

# roundup_power2_divisions: one setting per power of two from 1 MiB to 64 GiB (c10/core/AllocatorConfig.cpp).
ROUNDUP_INTERVALS = 16
ROUNDUP_START_LOG2 = 20

# An expandable segment takes address space for 1 1/8 of the card (ExpandableSegment's constructor).
EXPANDABLE_SPACE_NUMERATOR, EXPANDABLE_SPACE_DENOMINATOR = 9, 8
# Address space of an expandable segment on a card of unknown size: more than any card has.
UNKNOWN_CARD_BYTES = 1024 * GiB
