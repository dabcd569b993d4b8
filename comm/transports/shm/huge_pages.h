// SPDX-License-Identifier: Apache-2.0
// Memory files on huge pages. A copy of hundreds of megabytes is bounded by the memory, and a
// part of that are the walks for addresses: with a page of 2 MiB for 512 of 4 KiB they are gone,
// and so are the stops of the processor's prefetchers at every page's end. Memory files get such
// pages by MADV_COLLAPSE (Linux 6.1), whatever the machine's setting for shared memory is; where
// the kernel has none to give, ordinary pages serve as well.
#pragma once

#include <cstddef>

namespace ivy::comm::huge_pages {

inline constexpr std::size_t kBytes = std::size_t{2} << 20;  // On x86-64, and on arm64 by default.

// Maps the file's first `bytes` shared, from kBytes on at an address that huge pages can stand at.
// `protection` and `flags` are mmap's; nullptr with errno otherwise. To be given to munmap.
void* map(int descriptor, std::size_t bytes, int protection, int flags);

// Gives every whole kBytes of the file, mapped writable at `memory` by map(), a huge page: as far
// as the kernel has them, and nothing is said where it has none. The file must be of that length
// and have no pages yet. Quicker than ordinary pages: a fault less for each 4 KiB.
void fill(int descriptor, void* memory, std::size_t bytes);

}  // namespace ivy::comm::huge_pages
