// One round of waiting for another processor's store, without giving up this one.
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

}  // namespace ivy::comm
