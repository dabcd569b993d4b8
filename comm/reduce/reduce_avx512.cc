// SPDX-License-Identifier: Apache-2.0
// Compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq; only reached through the table of a
// machine that has them.
#include <immintrin.h>

#include "comm/reduce/kernel_choice.h"

namespace ivy::comm {
namespace {

struct Avx512 {
  static constexpr std::size_t kBytes = 64;
  static constexpr bool kFewInputs = true;
  // GCC 12 warns of an uninitialized register in the intrinsics without a mask.
  static constexpr __mmask16 kAll = 0xffff;

  static IVY_INLINE Vector<float, 64> widen_f16(Vector<std::uint16_t, 32> half) {
    return (Vector<float, 64>)_mm512_maskz_cvtph_ps(kAll, (__m256i)half);
  }
  static IVY_INLINE Vector<std::uint16_t, 32> narrow_f16(Vector<float, 64> value) {
    return (Vector<std::uint16_t, 32>)_mm512_maskz_cvtps_ph(kAll, (__m512)value,
                                                            _MM_FROUND_TO_NEAREST_INT);
  }

  template <class Word>
  static IVY_INLINE void store_streaming(std::byte* to, Word word) {
    if constexpr (sizeof(Word) == 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)word);
    } else if constexpr (sizeof(Word) == 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)word);
    } else {
      static_assert(sizeof(Word) == 16);
      _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)word);
    }
  }
  static IVY_INLINE void fence() { _mm_sfence(); }

  static IVY_INLINE void copy_part(std::byte* to, const std::byte* from, std::size_t bytes) {
    const __mmask64 mask = ~std::uint64_t{0} >> (kBytes - bytes);
    _mm512_mask_storeu_epi8(to, mask, _mm512_maskz_loadu_epi8(mask, from));
  }
};

}  // namespace

constexpr KernelSet kAvx512KernelsValue = kernel_set<Avx512>();
const KernelSet kAvx512Kernels = kAvx512KernelsValue;

}  // namespace ivy::comm
