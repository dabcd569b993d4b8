// The loop of every kernel: for a block of elements, read all inputs, combine them in registers,
// write once (and once more to a second output). What differs is in the types: formats and Isa
// (lanes.h) and the operations below. Included by the file of each instruction set; in an unnamed
// namespace for the reason told in lanes.h.
#pragma once

#include <utility>

#include "comm/reduce/kernel_table.h"
#include "comm/reduce/lanes.h"

namespace ivy::comm {
namespace {

// ---- Operations: prepare each input, combine from the left, finish once ----------------------

struct Plainly {
  template <class V>
  static IVY_INLINE V prepare(V value) {
    return value;
  }
  template <class V>
  static IVY_INLINE V finish(V value) {
    return value;
  }
};

struct Sum : Plainly {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    return a + b;
  }
};

struct Product : Plainly {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    return a * b;
  }
};

struct And : Plainly {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    return a & b;
  }
};

struct Or : Plainly {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    return a | b;
  }
};

struct Xor : Plainly {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    return a ^ b;
  }
};

// x86's minimum gives its second operand when the two are equal or not ordered. Asked both ways and
// joined by "or" it is exact: of two zeros the sign bit stays, and a NaN stays a NaN whatever is
// joined to it.
struct Minimum : Plainly {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    const V one = a < b ? a : b;
    if constexpr (kIsFloating<V>) {
      const V other = b < a ? b : a;
      return (V)((BitsOf<V>)one | (BitsOf<V>)other);
    } else {
      return one;
    }
  }
};

struct Maximum {
  template <class V>
  static IVY_INLINE V prepare(V value) {
    if constexpr (kIsFloating<V>) return -value;
    return value;
  }
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    if constexpr (kIsFloating<V>) return Minimum::combine(a, b);
    return a > b ? a : b;
  }
  template <class V>
  static IVY_INLINE V finish(V value) {
    return prepare(value);
  }
};

// Lanes are real, imaginary, real, imaginary ...
struct ComplexProduct : Plainly {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    return combine_lanes(a, b, std::make_integer_sequence<int, kLanes<V>>());
  }
  template <class V, int... lane>
  static IVY_INLINE V combine_lanes(V a, V b, std::integer_sequence<int, lane...>) {
    using Bits = BitsOf<V>;
    using Bit = LaneOf<Bits>;
    const V by_real = a * __builtin_shufflevector(b, b, (lane & ~1)...);
    const V by_imaginary =
        __builtin_shufflevector(a, a, (lane ^ 1)...) * __builtin_shufflevector(b, b, (lane | 1)...);
    const Bits minus = {(lane % 2 == 0 ? Bit{1} << (8 * sizeof(Bit) - 1) : Bit{0})...};
    return by_real + (V)((Bits)by_imaginary ^ minus);
  }
};

// ---- The loop ----------------------------------------------------------------------------------

enum class Scale : std::uint8_t {
  kNone,
  kInputs,  // Each by its factor.
  kOutput,  // By 1/divisor.
};

// Vectors that one block accumulates at a time.
inline constexpr int kBlockVectors = 4;
// From this many bytes on, unaligned stores cost more than a few elements done by themselves.
inline constexpr std::size_t kAlignFromBytes = 4096;
inline constexpr std::size_t kLineBytes = 64;

template <class Isa_, class In_, class Out_, class Operation_, Scale scale_ = Scale::kNone>
struct Recipe {
  using Isa = Isa_;
  using In = In_;
  using Out = Out_;
  using Operation = Operation_;
  static constexpr Scale kScale = scale_;
  static_assert(In::kVectors == Out::kVectors);
};

template <class Word>
IVY_INLINE Word load(const std::byte* from) {
  Word word;
  __builtin_memcpy(&word, from, sizeof word);
  return word;
}

template <class Word>
IVY_INLINE void store(std::byte* to, const Word& word) {
  __builtin_memcpy(to, &word, sizeof word);
}

template <class R, int vectors>
IVY_INLINE void read_block(const std::byte* from, const double* factor,
                           typename R::In::Lanes* lanes) {
  using In = typename R::In;
  using Lanes = typename In::Lanes;
  for (int i = 0; i < vectors; i += In::kVectors) {
    In::widen(load<typename In::Word>(from), lanes + i);
    from += sizeof(typename In::Word);
  }
  if constexpr (R::kScale == Scale::kInputs) {
    const Lanes by = splat<Lanes>(static_cast<LaneOf<Lanes>>(*factor));
    for (int i = 0; i < vectors; ++i) lanes[i] *= by;
  }
  for (int i = 0; i < vectors; ++i) lanes[i] = R::Operation::prepare(lanes[i]);
}

// `from(j)` is where input j has this block. All inputs are read before anything is written: the
// outputs may be inputs.
template <class R, int vectors, int input_count, class From>
IVY_INLINE void reduce_block(const KernelCall& call, const From& from, std::byte* to,
                             std::byte* second, bool streaming) {
  using Lanes = typename R::In::Lanes;
  using Word = typename R::Out::Word;
  Lanes sum[vectors];
  read_block<R, vectors>(from(0), call.factors, sum);
  const std::size_t inputs = input_count == 0 ? call.input_count : input_count;
#pragma GCC unroll 4
  for (std::size_t j = 1; j < inputs; ++j) {
    Lanes next[vectors];
    read_block<R, vectors>(from(j), call.factors + j, next);
    for (int i = 0; i < vectors; ++i) sum[i] = R::Operation::combine(sum[i], next[i]);
  }
  for (int i = 0; i < vectors; ++i) {
    sum[i] = R::Operation::finish(sum[i]);
    if constexpr (R::kScale == Scale::kOutput) {
      using Lane = LaneOf<Lanes>;
      sum[i] *= splat<Lanes>(Lane{1} / static_cast<Lane>(call.divisor));
    }
    sum[i] = with_one_nan(sum[i]);
  }
  for (int i = 0; i < vectors; i += R::Out::kVectors) {
    const Word word = R::Out::narrow(sum + i);
    if (streaming) {
      R::Isa::store_streaming(to, word);
    } else {
      store(to, word);
    }
    if (second != nullptr) store(second, word);
    to += sizeof(Word);
    if (second != nullptr) second += sizeof(Word);
  }
}

// Elements that do not fill a word, or that come before the output's first aligned place: through
// padded words, so that they take the very same way.
template <class R, int input_count>
void reduce_part(const KernelCall& call, std::size_t begin, std::size_t elements) {
  using In = typename R::In;
  using Out = typename R::Out;
  alignas(kLineBytes) std::byte word_in[sizeof(typename In::Word)] = {};
  alignas(kLineBytes) std::byte word_out[sizeof(typename Out::Word)];
  const auto from = [&](std::size_t j) -> const std::byte* {
    R::Isa::copy_part(word_in,
                      static_cast<const std::byte*>(call.inputs[j]) + begin * In::kElementBytes,
                      elements * In::kElementBytes);
    return word_in;
  };
  reduce_block<R, In::kVectors, input_count>(call, from, word_out, nullptr, false);
  const std::size_t place = begin * Out::kElementBytes;
  const std::size_t bytes = elements * Out::kElementBytes;
  R::Isa::copy_part(static_cast<std::byte*>(call.output) + place, word_out, bytes);
  if (call.second_output != nullptr) {
    R::Isa::copy_part(static_cast<std::byte*>(call.second_output) + place, word_out, bytes);
  }
}

// How many elements come before the output's first cache line; `streaming` is taken back where no
// element begins a line.
template <class R>
IVY_INLINE std::size_t elements_before_line(const KernelCall& call, bool& streaming) {
  constexpr std::size_t kBytes = R::Out::kElementBytes;
  // A complex number is never cut.
  constexpr std::size_t kUnit =
      std::is_same_v<typename R::Operation, ComplexProduct> ? 2 * kBytes : kBytes;
  const auto address = reinterpret_cast<std::uintptr_t>(call.output);
  if (call.count * kBytes < kAlignFromBytes || address % kUnit != 0) {
    streaming = false;
    return 0;
  }
  return (-address % kLineBytes) / kBytes;
}

template <class R, int input_count>
void reduce_all(const KernelCall& call) {
  using In = typename R::In;
  using Out = typename R::Out;
  constexpr std::size_t kElements = sizeof(typename In::Word) / In::kElementBytes;
  constexpr std::size_t kBlock = kElements * (kBlockVectors / In::kVectors);
  bool streaming = call.streaming;
  const std::size_t aligned = elements_before_line<R>(call, streaming);
  std::size_t at = 0;
  while (at < aligned) {
    const std::size_t elements = aligned - at < kElements ? aligned - at : kElements;
    reduce_part<R, input_count>(call, at, elements);
    at += elements;
  }

  // A fixed number of inputs keeps their addresses in registers.
  const void* fixed[input_count == 0 ? 1 : input_count];
  for (int j = 0; j < input_count; ++j) fixed[j] = call.inputs[j];
  const void* const* const inputs = input_count == 0 ? call.inputs : fixed;
  const auto from = [&](std::size_t j) {
    return static_cast<const std::byte*>(inputs[j]) + at * In::kElementBytes;
  };
  std::byte* const output = static_cast<std::byte*>(call.output);
  std::byte* const second = static_cast<std::byte*>(call.second_output);
  const auto second_at = [&] {
    return second == nullptr ? nullptr : second + at * Out::kElementBytes;
  };
  for (; call.count - at >= kBlock; at += kBlock) {
    reduce_block<R, kBlockVectors, input_count>(call, from, output + at * Out::kElementBytes,
                                                second_at(), streaming);
  }
  for (; call.count - at >= kElements; at += kElements) {
    reduce_block<R, In::kVectors, input_count>(call, from, output + at * Out::kElementBytes,
                                               second_at(), false);
  }
  if (at < call.count) reduce_part<R, input_count>(call, at, call.count - at);
  if (streaming) R::Isa::fence();
}

template <class R>
void reduce_any(const KernelCall& call) {
  reduce_all<R, 0>(call);
}

// For what most jobs do all day: loops of their own for 2, 3 and 4 inputs.
template <class R>
void reduce_few(const KernelCall& call) {
  switch (call.input_count) {
    case 2:
      return reduce_all<R, 2>(call);
    case 3:
      return reduce_all<R, 3>(call);
    case 4:
      return reduce_all<R, 4>(call);
    default:
      return reduce_all<R, 0>(call);
  }
}

// ---- The choice --------------------------------------------------------------------------------

template <class Isa, class T>
Kernel find_integer(ReduceOp op) {
  // Wrapping is the same for both signs; signed overflow would be undefined.
  using Wrapping = Plain<Isa, std::make_unsigned_t<T>>;
  using Signed = Plain<Isa, T>;
  switch (op) {
    case ReduceOp::kSum:
      return reduce_few<Recipe<Isa, Wrapping, Wrapping, Sum>>;
    case ReduceOp::kProduct:
      return reduce_any<Recipe<Isa, Wrapping, Wrapping, Product>>;
    case ReduceOp::kMin:
      return reduce_any<Recipe<Isa, Signed, Signed, Minimum>>;
    case ReduceOp::kMax:
      return reduce_any<Recipe<Isa, Signed, Signed, Maximum>>;
    case ReduceOp::kBand:
      return reduce_any<Recipe<Isa, Wrapping, Wrapping, And>>;
    case ReduceOp::kBor:
      return reduce_any<Recipe<Isa, Wrapping, Wrapping, Or>>;
    case ReduceOp::kBxor:
      return reduce_any<Recipe<Isa, Wrapping, Wrapping, Xor>>;
    case ReduceOp::kAvg:  // Only the scalar file has it.
    case ReduceOp::kPremulSum:
      return nullptr;
  }
  return nullptr;
}

template <class Isa>
Kernel find_bool(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBand:
      return reduce_any<Recipe<Isa, Bool<Isa>, Bool<Isa>, And>>;
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kMax:
    case ReduceOp::kBor:
      return reduce_any<Recipe<Isa, Bool<Isa>, Bool<Isa>, Or>>;
    case ReduceOp::kBxor:
      return reduce_any<Recipe<Isa, Bool<Isa>, Bool<Isa>, Xor>>;
    case ReduceOp::kPremulSum:
      return nullptr;
  }
  return nullptr;
}

template <class Isa, class T>
Kernel find_float(ReduceOp op, Form input_form, Form output_form) {
  using P = Plain<Isa, T>;
  const bool factors = op == ReduceOp::kPremulSum && input_form == Form::kElement;
  const bool divides = op == ReduceOp::kAvg && output_form == Form::kElement;
  if (factors) return reduce_any<Recipe<Isa, P, P, Sum, Scale::kInputs>>;
  if (divides) return reduce_few<Recipe<Isa, P, P, Sum, Scale::kOutput>>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return reduce_few<Recipe<Isa, P, P, Sum>>;
    case ReduceOp::kProduct:
      return reduce_any<Recipe<Isa, P, P, Product>>;
    case ReduceOp::kMin:
      return reduce_any<Recipe<Isa, P, P, Minimum>>;
    case ReduceOp::kMax:
      return reduce_any<Recipe<Isa, P, P, Maximum>>;
    default:
      return nullptr;
  }
}

template <class Isa, class T>
Kernel find_complex(ReduceOp op, Form input_form, Form output_form) {
  using P = Plain<Isa, T>;
  if (op == ReduceOp::kProduct) return reduce_any<Recipe<Isa, P, P, ComplexProduct>>;
  return find_float<Isa, T>(op, input_form, output_form);
}

// `Small` where one side is f32, `Within` where both sides are elements.
template <class Isa, class Small, class Within>
Kernel find_small_float(ReduceOp op, Form input_form, Form output_form) {
  using F32 = Plain<Isa, float>;
  if (op == ReduceOp::kMin) return reduce_any<Recipe<Isa, Within, Within, Minimum>>;
  if (op == ReduceOp::kMax) return reduce_any<Recipe<Isa, Within, Within, Maximum>>;
  if (input_form == Form::kPartial && output_form == Form::kPartial) {
    return find_float<Isa, float>(op, input_form, output_form);
  }
  const bool from_partial = input_form == Form::kPartial;
  const bool to_partial = output_form == Form::kPartial;
  if (op == ReduceOp::kProduct) {
    if (from_partial) return reduce_any<Recipe<Isa, F32, Small, Product>>;
    if (to_partial) return reduce_any<Recipe<Isa, Small, F32, Product>>;
    return reduce_any<Recipe<Isa, Within, Within, Product>>;
  }
  if (op == ReduceOp::kPremulSum && !from_partial) {
    if (to_partial) return reduce_any<Recipe<Isa, Small, F32, Sum, Scale::kInputs>>;
    return reduce_any<Recipe<Isa, Within, Within, Sum, Scale::kInputs>>;
  }
  if (op == ReduceOp::kAvg && !to_partial) {
    if (from_partial) return reduce_any<Recipe<Isa, F32, Small, Sum, Scale::kOutput>>;
    return reduce_few<Recipe<Isa, Within, Within, Sum, Scale::kOutput>>;
  }
  if (from_partial) return reduce_any<Recipe<Isa, F32, Small, Sum>>;
  if (to_partial) return reduce_any<Recipe<Isa, Small, F32, Sum>>;
  return reduce_few<Recipe<Isa, Within, Within, Sum>>;
}

template <class Isa>
Kernel find(Dtype dtype, ReduceOp op, Form input_form, Form output_form) {
  switch (dtype) {
    case Dtype::kI8:
      return find_integer<Isa, std::int8_t>(op);
    case Dtype::kU8:
      return find_integer<Isa, std::uint8_t>(op);
    case Dtype::kI16:
      return find_integer<Isa, std::int16_t>(op);
    case Dtype::kU16:
      return find_integer<Isa, std::uint16_t>(op);
    case Dtype::kI32:
      return find_integer<Isa, std::int32_t>(op);
    case Dtype::kU32:
      return find_integer<Isa, std::uint32_t>(op);
    case Dtype::kI64:
      return find_integer<Isa, std::int64_t>(op);
    case Dtype::kU64:
      return find_integer<Isa, std::uint64_t>(op);
    case Dtype::kBool:
      return find_bool<Isa>(op);
    case Dtype::kF32:
      return find_float<Isa, float>(op, input_form, output_form);
    case Dtype::kF64:
      return find_float<Isa, double>(op, input_form, output_form);
    case Dtype::kC64:
      return find_complex<Isa, float>(op, input_form, output_form);
    case Dtype::kC128:
      return find_complex<Isa, double>(op, input_form, output_form);
    case Dtype::kF16:
      return find_small_float<Isa, F16<Isa>, F16<Isa>>(op, input_form, output_form);
    case Dtype::kBf16:
      return find_small_float<Isa, Bf16<Isa>, Bf16Pairs<Isa>>(op, input_form, output_form);
    case Dtype::kF8E4m3:
      return find_small_float<Isa, Fp8<Isa, E4m3Codec>, Fp8<Isa, E4m3Codec>>(op, input_form,
                                                                             output_form);
    case Dtype::kF8E5m2:
      return find_small_float<Isa, Fp8<Isa, E5m2Codec>, Fp8<Isa, E5m2Codec>>(op, input_form,
                                                                             output_form);
  }
  return nullptr;
}

// ---- Copies ------------------------------------------------------------------------------------

// One read, one or two writes. `second` may be null.
template <class Isa>
IVY_INLINE void copy_blocks(std::byte* to, bool streaming, std::byte* second, const std::byte* from,
                            std::size_t bytes) {
  using Word = Vector<std::uint64_t, Isa::kBytes>;
  constexpr std::size_t kBlock = kBlockVectors * sizeof(Word);
  const auto part = [&](std::size_t length) {
    __builtin_memcpy(to, from, length);
    if (second != nullptr) __builtin_memcpy(second, from, length);
    to += length;
    if (second != nullptr) second += length;
    from += length;
    bytes -= length;
  };
  if (bytes < kAlignFromBytes) return part(bytes);
  part(-reinterpret_cast<std::uintptr_t>(to) % kLineBytes);
  for (; bytes >= kBlock; bytes -= kBlock) {
    Word words[kBlockVectors];
    for (int i = 0; i < kBlockVectors; ++i) {
      words[i] = load<Word>(from + static_cast<std::size_t>(i) * sizeof(Word));
    }
    for (int i = 0; i < kBlockVectors; ++i) {
      if (streaming) {
        Isa::store_streaming(to, words[i]);
      } else {
        store(to, words[i]);
      }
      if (second != nullptr) store(second, words[i]);
      to += sizeof(Word);
      if (second != nullptr) second += sizeof(Word);
    }
    from += kBlock;
  }
  part(bytes);
  if (streaming) Isa::fence();
}

template <class Isa>
void copy_streaming_with(void* to, const void* from, std::size_t bytes) {
  copy_blocks<Isa>(static_cast<std::byte*>(to), true, nullptr, static_cast<const std::byte*>(from),
                   bytes);
}

template <class Isa>
void copy_twice_by(void* to, bool streaming, void* second, const void* from, std::size_t bytes) {
  copy_blocks<Isa>(static_cast<std::byte*>(to), streaming, static_cast<std::byte*>(second),
                   static_cast<const std::byte*>(from), bytes);
}

template <class Isa>
constexpr KernelSet kernel_set() {
  return {.find = find<Isa>,
          .copy_streaming = copy_streaming_with<Isa>,
          .copy_twice = copy_twice_by<Isa>};
}

}  // namespace
}  // namespace ivy::comm
