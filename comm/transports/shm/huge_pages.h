// SPDX-License-Identifier: Apache-2.0
// Memory files on huge pages. Copying hundreds of megabytes is limited by the memory, and page
// walks are part of the cost. With one page of 2 MiB instead of 512 of 4 KiB they disappear, and
// the processor's prefetchers no longer stop at the end of every page. Memory files get such pages
// by MADV_COLLAPSE (Linux 6.1), whatever the machine's setting for shared memory is. If the kernel
// has none, ordinary pages are used.
#pragma once

#include <cstddef>

namespace ivy::comm::huge_pages {

inline constexpr std::size_t kBytes = std::size_t{2} << 20;  // With ordinary pages of 4 KiB.

// Maps the file's first `bytes` shared; if they are at least kBytes, at an address that is aligned
// for huge pages. `protection` and `flags` are mmap's. Returns null and sets errno on failure.
// Release it with munmap.
void* map(int descriptor, std::size_t bytes, int protection, int flags);

// Gives every whole kBytes of the file, mapped writable at `memory` by map(), a huge page. If the
// kernel has no more, the rest gets none, which is not an error. The file must have that length and
// no pages yet. Faster than ordinary pages, which need a page fault for each 4 KiB.
void fill(int descriptor, void* memory, std::size_t bytes);

}  // namespace ivy::comm::huge_pages
