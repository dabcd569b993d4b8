// SPDX-License-Identifier: Apache-2.0
// The loop of every kernel: for a block of elements, read all inputs, combine them in registers,
// write once (and once more to a second output). The types contain all differences: Isa
// (vectors.h), formats.h, operations.h. In an unnamed namespace for the reason given in
// comm/reduce/vectors.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "comm/reduce/formats.h"
#include "comm/reduce/kernel_table.h"
#include "comm/reduce/operations.h"
#include "comm/reduce/vectors.h"

namespace ivy::comm {
namespace {

enum class Scale : std::uint8_t {
  kNone,
  kInputs,  // Each input is multiplied by its factor.
  kOutput,  // The result is divided by the divisor.
};

template <class Isa_, class In_, class Out_, class Operation_, Scale scale_ = Scale::kNone>
struct KernelSpec {
  using Isa = Isa_;
  using In = In_;
  using Out = Out_;
  using Operation = Operation_;
  static constexpr Scale kScale = scale_;
  static_assert(In::kVectors == Out::kVectors);
};

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

// `from(j)` is the location of this block in input j. All inputs are read before anything is
// written, because the outputs may be inputs.
template <class R, int vectors, int input_count, class From>
IVY_INLINE void reduce_block(const KernelCall& call, const From& from, std::byte* to,
                             std::byte* second, bool streaming) {
  using Lanes = typename R::In::Lanes;
  using Word = typename R::Out::Word;
  constexpr int kWordBytes = static_cast<int>(sizeof(Word));
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
      // Divide instead of multiplying with 1/divisor: if the sum is exact, the mean of equal values
      // is that value.
      sum[i] /= splat<Lanes>(static_cast<Lane>(call.divisor));
    }
    sum[i] = with_one_nan(sum[i]);
  }
  constexpr int kWords = vectors / R::Out::kVectors;
  Word words[kWords];
  for (int i = 0; i < kWords; ++i) words[i] = R::Out::narrow(sum + i * R::Out::kVectors);
  if (streaming) {
    for (int i = 0; i < kWords; ++i) R::Isa::store_streaming(to + i * kWordBytes, words[i]);
  } else {
    for (int i = 0; i < kWords; ++i) store(to + i * kWordBytes, words[i]);
  }
  if (second == nullptr) return;
  for (int i = 0; i < kWords; ++i) store(second + i * kWordBytes, words[i]);
}

// Copies the same piece of every copy that is combined with the reduction.
template <class R, std::size_t bytes>
IVY_INLINE void copy_block(const KernelCall& call, std::size_t begin) {
  constexpr std::size_t kStep = bytes < R::Isa::kBytes ? bytes : R::Isa::kBytes;
  using Word = Vector<std::uint64_t, kStep>;
  static_assert(bytes % kStep == 0);
  for (std::size_t c = 0; c < call.copy_count; ++c) {
    std::byte* const to = static_cast<std::byte*>(call.copies[c].to) + begin;
    const std::byte* const from = static_cast<const std::byte*>(call.copies[c].from) + begin;
    Word words[bytes / kStep];
    for (std::size_t i = 0; i < bytes / kStep; ++i) words[i] = load<Word>(from + i * kStep);
    for (std::size_t i = 0; i < bytes / kStep; ++i) {
      R::Isa::store_streaming(to + i * kStep, words[i]);
    }
  }
}

// Copies the bytes after the last whole block.
template <class R>
void copy_rest(const KernelCall& call, std::size_t begin) {
  const std::size_t bytes = call.count * R::Out::kElementBytes - begin;
  for (std::size_t c = 0; c < call.copy_count; ++c) {
    __builtin_memcpy(static_cast<std::byte*>(call.copies[c].to) + begin,
                     static_cast<const std::byte*>(call.copies[c].from) + begin, bytes);
  }
}

// Reduces elements that do not fill a word, or that precede the output's first aligned address,
// through padded words, so that they are computed in exactly the same way.
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
  const std::size_t offset = begin * Out::kElementBytes;
  const std::size_t bytes = elements * Out::kElementBytes;
  R::Isa::copy_part(static_cast<std::byte*>(call.output) + offset, word_out, bytes);
  if (call.second_output != nullptr) {
    R::Isa::copy_part(static_cast<std::byte*>(call.second_output) + offset, word_out, bytes);
  }
}

// Returns the number of elements before the output's first cache line; clears `streaming` if no
// element starts at a line or the output is short.
template <class R>
IVY_INLINE std::size_t elements_before_line(const KernelCall& call, bool& streaming) {
  constexpr std::size_t kBytes = R::Out::kElementBytes;
  // A complex number is never split.
  constexpr std::size_t kUnit =
      std::is_same_v<typename R::Operation, ComplexProduct> ? 2 * kBytes : kBytes;
  const auto address = reinterpret_cast<std::uintptr_t>(call.output);
  if (call.count * kBytes < kAlignFromBytes || address % kUnit != 0) {
    streaming = false;
    return 0;
  }
  return (-address % kLineBytes) / kBytes;
}

// Reduces the elements before the output's first cache line. Returns their number.
template <class R, int input_count>
IVY_INLINE std::size_t reduce_before_line(const KernelCall& call, bool& streaming) {
  constexpr std::size_t kElements = sizeof(typename R::In::Word) / R::In::kElementBytes;
  const std::size_t aligned = elements_before_line<R>(call, streaming);
  std::size_t at = 0;
  while (at < aligned) {
    const std::size_t elements = aligned - at < kElements ? aligned - at : kElements;
    reduce_part<R, input_count>(call, at, elements);
    at += elements;
  }
  return at;
}

template <class R, int input_count>
void reduce_all(const KernelCall& call) {
  using In = typename R::In;
  using Out = typename R::Out;
  constexpr std::size_t kElements = sizeof(typename In::Word) / In::kElementBytes;
  constexpr std::size_t kBlock = kElements * (kBlockVectors / In::kVectors);
  bool streaming = call.streaming;
  std::size_t at = reduce_before_line<R, input_count>(call, streaming);
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
    if (call.copy_count > 0) {
      copy_block<R, kBlock * Out::kElementBytes>(call, at * Out::kElementBytes);
    }
  }
  if (call.copy_count > 0) copy_rest<R>(call, at * Out::kElementBytes);
  for (; call.count - at >= kElements; at += kElements) {
    reduce_block<R, In::kVectors, input_count>(call, from, output + at * Out::kElementBytes,
                                               second_at(), false);
  }
  if (at < call.count) reduce_part<R, input_count>(call, at, call.count - at);
  if (streaming || call.copy_count > 0) R::Isa::fence();
}

template <class R>
void reduce_any(const KernelCall& call) {
  reduce_all<R, 0>(call);
}

// For the usual reductions: separate loops for 2, 3 and 4 inputs.
template <class R>
void reduce_few(const KernelCall& call) {
  if constexpr (R::Isa::kFewInputs) {
    if (call.input_count == 2) return reduce_all<R, 2>(call);
    if (call.input_count == 3) return reduce_all<R, 3>(call);
    if (call.input_count == 4) return reduce_all<R, 4>(call);
  }
  reduce_all<R, 0>(call);
}

// Copies with stores that bypass the caches.
template <class Isa>
void copy_streaming_with(void* to_memory, const void* from_memory, std::size_t bytes) {
  using Word = Vector<std::uint64_t, Isa::kBytes>;
  constexpr std::size_t kBlock = kBlockVectors * sizeof(Word);
  auto* to = static_cast<std::byte*>(to_memory);
  const auto* from = static_cast<const std::byte*>(from_memory);
  const auto part = [&](std::size_t length) {
    __builtin_memcpy(to, from, length);
    to += length;
    from += length;
    bytes -= length;
  };
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(to) % kLineBytes;
  if (bytes < (before == 0 ? kBlock : kAlignFromBytes)) return part(bytes);
  part(before);
  for (; bytes >= kBlock; bytes -= kBlock) {
    Word words[kBlockVectors];
    for (int i = 0; i < kBlockVectors; ++i) {
      words[i] = load<Word>(from + static_cast<std::size_t>(i) * sizeof(Word));
    }
    for (int i = 0; i < kBlockVectors; ++i) {
      Isa::store_streaming(to + static_cast<std::size_t>(i) * sizeof(Word), words[i]);
    }
    to += kBlock;
    from += kBlock;
  }
  part(bytes);
  Isa::fence();
}

}  // namespace
}  // namespace ivy::comm
