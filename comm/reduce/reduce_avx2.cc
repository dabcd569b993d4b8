// SPDX-License-Identifier: Apache-2.0
// Compiled with -mavx2 -mf16c; only reached through the table of a machine that has them.
#include <immintrin.h>

#include "comm/reduce/kernel_choice.h"

namespace ivy::comm {
namespace {

struct Avx2 {
  static constexpr std::size_t kBytes = 32;
  static constexpr bool kFewInputs = true;

  static IVY_INLINE Vector<float, 32> widen_f16(Vector<std::uint16_t, 16> half) {
    return (Vector<float, 32>)_mm256_cvtph_ps((__m128i)half);
  }
  static IVY_INLINE Vector<std::uint16_t, 16> narrow_f16(Vector<float, 32> value) {
    return (Vector<std::uint16_t, 16>)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT);
  }

  template <class Word>
  static IVY_INLINE void store_streaming(std::byte* to, Word word) {
    if constexpr (sizeof(Word) == 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)word);
    } else if constexpr (sizeof(Word) == 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)word);
    } else {
      static_assert(sizeof(Word) == 8);
      _mm_stream_si64(reinterpret_cast<long long*>(to), std::bit_cast<long long>(word));
    }
  }
  static IVY_INLINE void fence() { _mm_sfence(); }

  static IVY_INLINE void copy_part(std::byte* to, const std::byte* from, std::size_t bytes) {
    __builtin_memcpy(to, from, bytes);
  }
};

}  // namespace

constexpr KernelSet kAvx2KernelsValue = kernel_set<Avx2>();
const KernelSet kAvx2Kernels = kAvx2KernelsValue;

}  // namespace ivy::comm
