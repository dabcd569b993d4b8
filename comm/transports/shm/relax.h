// SPDX-License-Identifier: Apache-2.0
// Performs one round of waiting for another processor's store, without giving up this processor.
#pragma once

namespace ivy::comm {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::
                   : "memory");  // Waits some tens of cycles; `yield` does nothing on most cores.
#endif
}

// Prefetches the line at `line` for writing, without waiting for it. Compilers translate
// __builtin_prefetch to an instruction that leaves the line shared with its readers, so that the
// store would still have to wait. Every x86-64 processor accepts this instruction, if only as a
// no-op.
inline void take_line(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1, 3);
#endif
}

}  // namespace ivy::comm
