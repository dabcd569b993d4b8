// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/matrix_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "comm/reduce/identity.h"

namespace ivy::comm::test {
namespace {

constexpr std::uint8_t kCanary = 0xa5;
constexpr std::size_t kCanaryBytes = 64;

template <class T>
void put(Bytes& bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

template <class T>
T special_number(std::uint32_t bits) {
  using Limits = std::numeric_limits<T>;
  const T values[] = {
      T(0),          -T(0), Limits::infinity(),  -Limits::infinity(), -Limits::quiet_NaN(),
      Limits::max(), T(1),  Limits::denorm_min()};
  return values[bits % std::size(values)];
}

// Sums of some of these need more digits than any type has, even f32 for halves. Products of
// numbers between 1/2 and 2 use all digits.
template <class T>
T number(ReduceOp op, std::uint32_t bits) {
  if (mix(bits + 1) % 64 == 0) return special_number<T>(mix(bits + 2));
  const double digits = mix(bits + 3) * 0x1p-32 + mix(bits + 4) * 0x1p-64;
  const double sign = bits % 2 == 0 ? 1 : -1;
  if (op == ReduceOp::kProduct) return static_cast<T>(sign * (0.5 + 1.5 * digits));
  return static_cast<T>(sign * std::ldexp(1 + digits, static_cast<int>(mix(bits + 5) % 19) - 14));
}

void put_element(Bytes& bytes, std::size_t i, const Kind& kind, std::uint32_t bits) {
  const std::size_t element = kind.element();
  switch (kind.dtype) {
    case Dtype::kF16:
    case Dtype::kBf16:
      put(bytes, i,
          static_cast<std::uint16_t>(encode_small(kind.dtype, number<float>(kind.op, bits))));
      break;
    case Dtype::kF8E4m3:
    case Dtype::kF8E5m2:
      put(bytes, i,
          static_cast<std::uint8_t>(encode_small(kind.dtype, number<float>(kind.op, bits))));
      break;
    case Dtype::kF32:
      put(bytes, i, number<float>(kind.op, bits));
      break;
    case Dtype::kF64:
      put(bytes, i, number<double>(kind.op, bits));
      break;
    case Dtype::kC64:
      put(bytes, 2 * i, number<float>(kind.op, bits));
      put(bytes, 2 * i + 1, number<float>(kind.op, ~bits));
      break;
    case Dtype::kC128:
      put(bytes, 2 * i, number<double>(kind.op, bits));
      put(bytes, 2 * i + 1, number<double>(kind.op, ~bits));
      break;
    case Dtype::kBool:
      put(bytes, i, static_cast<std::uint8_t>(bits % 8 == 0 ? 2 : bits % 2));
      break;
    default:  // Integers: any bits.
      for (std::size_t byte = 0; byte < element; ++byte) {
        bytes[i * element + byte] =
            static_cast<std::uint8_t>(mix(bits + static_cast<std::uint32_t>(byte)));
      }
  }
}

template <class Visit>
void for_pieces(const Bytes& period, std::size_t element, std::size_t count, std::size_t from,
                Visit visit) {
  const std::size_t length = period.size() / element;
  for (std::size_t done = 0; done < count;) {
    const std::size_t start = (from + done) % length;
    const std::size_t piece = std::min(length - start, count - done);
    visit(done * element, period.data() + start * element, piece * element);
    done += piece;
  }
}

}  // namespace

std::uint32_t mix(std::uint32_t value) {
  value = (value ^ value >> 16) * 0x7feb352dU;
  value = (value ^ value >> 15) * 0x846ca68bU;
  return value ^ value >> 16;
}

// Returns a factor whose products round.
double factor_of(int rank) { return rank % 2 == 0 ? 1.0 / 3.0 : -1.7; }

Bytes input_of(int rank, const Kind& kind, std::size_t count) {
  Bytes bytes(count * kind.element());
  for (std::size_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint32_t>(i * 64 + static_cast<std::size_t>(rank));
    put_element(bytes, i, kind, mix(index + kind.seed * 0x9e3779b9U));
  }
  return bytes;
}

// ---- Expected -----------------------------------------------------------------------------------

void Expected::begin(const Kind& kind) {
  if (kind.key() == kind_.key() && !inputs_.empty()) return;
  kind_ = kind;
  inputs_.clear();
  scanned_.clear();
  reduced_.clear();
  for (int rank = 0; rank < rank_count(hosts_); ++rank) inputs_[rank] = input_of(rank, kind);
}

const Bytes& Expected::input(int rank, const Kind& kind) {
  begin(kind);
  return inputs_[rank];
}

Bytes Expected::combine(const Kind& kind, int first, int ranks, Form output) {
  std::vector<Bytes> inputs;
  std::vector<double> factors;
  for (int rank = first; rank < first + ranks; ++rank) {
    inputs.push_back(input(rank, kind));
    factors.push_back(factor_of(rank));
  }
  Reduction reduction;
  reduction.dtype = kind.dtype;
  reduction.op = kind.op;
  reduction.output_form = output;
  reduction.divisor = static_cast<std::uint32_t>(ranks);
  if (kind.op == ReduceOp::kPremulSum) reduction.factors = factors.data();
  return reference_reduce(reduction, inputs, kPeriod);
}

const Bytes& Expected::reduced(const Kind& kind) {
  begin(kind);
  if (!reduced_.empty()) return reduced_;
  if (hosts_.size() == 1) return reduced_ = combine(kind, 0, hosts_[0], Form::kElement);
  std::vector<Bytes> partials;
  int first = 0;
  for (const int ranks : hosts_) {
    partials.push_back(combine(kind, first, ranks, Form::kPartial));
    first += ranks;
  }
  Reduction last;
  last.dtype = kind.dtype;
  last.op = kind.op;
  last.input_form = Form::kPartial;
  last.divisor = static_cast<std::uint32_t>(first);
  return reduced_ = reference_reduce(last, partials, kPeriod);
}

const Bytes& Expected::scanned(int last, const Kind& kind) {
  begin(kind);
  Bytes& result = scanned_[last];
  if (!result.empty()) return result;
  if (last >= 0) return result = combine(kind, 0, last + 1, Form::kElement);
  result.resize(kPeriod * element_bytes(kind.dtype));
  fill_with_identity(kind.dtype, kind.op, result.data(), kPeriod);
  return result;
}

// ---- Memory -------------------------------------------------------------------------------------

Registration& registration() {
  static Registration one;
  return one;
}

Memory::Memory(std::size_t bytes) : bytes_(bytes) {
  static unsigned made = 0;
  const Registered which = registration().which;
  if (which == Registered::kAll || (which == Registered::kEverySecond && ++made % 2 == 0)) {
    void* memory = nullptr;
    EXPECT_EQ(ivy_mem_alloc(registration().comm, bytes, &memory), IVY_OK) << ivy_last_error();
    registered_ = static_cast<std::uint8_t*>(memory);
  } else {
    plain_.resize(bytes);
  }
  std::fill_n(data(), bytes_, kCanary);
}

Memory::~Memory() {
  if (registered_ == nullptr) return;
  EXPECT_EQ(ivy_mem_free(registered_), IVY_OK) << ivy_last_error();
}

Memory::Memory(Memory&& other) noexcept
    : bytes_(other.bytes_),
      registered_(std::exchange(other.registered_, nullptr)),
      plain_(std::move(other.plain_)) {}

Buffer::Buffer(std::size_t bytes, BufferMode mode)
    : bytes_(bytes),
      skip_(kCanaryBytes + (mode == BufferMode::kUnaligned ? 1 : 0)),
      memory_(bytes + 2 * kCanaryBytes + 1) {}

void Buffer::fill(const Bytes& period, std::size_t element, std::size_t at, std::size_t count,
                  std::size_t from) {
  for_pieces(period, element, count, from,
             [&](std::size_t begin, const std::uint8_t* piece, std::size_t bytes) {
               std::memcpy(data() + at * element + begin, piece, bytes);
             });
}

bool Buffer::holds(const Bytes& period, std::size_t element, std::size_t at, std::size_t count,
                   std::size_t from) {
  bool is_equal = true;
  for_pieces(period, element, count, from,
             [&](std::size_t begin, const std::uint8_t* piece, std::size_t bytes) {
               is_equal &= std::memcmp(data() + at * element + begin, piece, bytes) == 0;
             });
  return is_equal;
}

bool Buffer::is_guarded() const {
  const auto is_canary = [](std::uint8_t byte) { return byte == kCanary; };
  return std::all_of(memory_.begin(), memory_.begin() + skip_, is_canary) &&
         std::all_of(memory_.begin() + skip_ + bytes_, memory_.end(), is_canary);
}

bool Buffer::is_untouched(std::size_t begin, std::size_t end) const {
  return std::all_of(memory_.begin() + skip_ + begin, memory_.begin() + skip_ + end,
                     [](std::uint8_t byte) { return byte == kCanary; });
}

}  // namespace ivy::comm::test
