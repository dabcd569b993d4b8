// SPDX-License-Identifier: Apache-2.0
// Compiled on aarch64 only, where every machine has these instructions.
#include <arm_neon.h>

#include "comm/reduce/kernel_choice.h"

namespace ivy::comm {
namespace {

struct Neon {
  static constexpr std::size_t kBytes = 16;
  static constexpr bool kFewInputs = true;

  static IVY_INLINE Vector<float, 16> widen_f16(Vector<std::uint16_t, 8> half) {
    return (Vector<float, 16>)vcvt_f32_f16((float16x4_t)half);
  }
  static IVY_INLINE Vector<std::uint16_t, 8> narrow_f16(Vector<float, 16> value) {
    return (Vector<std::uint16_t, 8>)vcvt_f16_f32((float32x4_t)value);
  }

  // GCC has no intrinsic for STNP; cores detect long runs of stores by themselves.
  template <class Word>
  static IVY_INLINE void store_streaming(std::byte* to, Word word) {
    __builtin_memcpy(to, &word, sizeof word);
  }
  static IVY_INLINE void fence() {}

  static IVY_INLINE void copy_part(std::byte* to, const std::byte* from, std::size_t bytes) {
    __builtin_memcpy(to, from, bytes);
  }
};

}  // namespace

constexpr KernelSet kNeonKernelsValue = kernel_set<Neon>();
const KernelSet kNeonKernels = kNeonKernelsValue;

}  // namespace ivy::comm
