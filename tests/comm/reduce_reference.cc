// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/reduce_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

namespace ivy::comm {
namespace {

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 UnsignedInt128;

struct SmallFormat {
  int exponent_bits;
  int mantissa_bits;
  bool e4m3;       // No infinity; all ones is NaN.
  bool saturates;  // Values beyond the range become the greatest finite one.
};

SmallFormat format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return {5, 10, false, false};
    case Dtype::kBf16:
      return {8, 7, false, false};
    case Dtype::kF8E4m3:
      return {4, 3, true, true};
    default:
      return {5, 2, false, true};
  }
}

bool is_small(Dtype dtype) {
  return dtype == Dtype::kF16 || dtype == Dtype::kBf16 || dtype == Dtype::kF8E4m3 ||
         dtype == Dtype::kF8E5m2;
}

std::uint32_t nan_code(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return 0x7e00;
    case Dtype::kBf16:
      return 0x7fc0;
    default:
      return 0x7f;
  }
}

// Returns all values from 0 to the greatest finite one; the index of a value is its code.
std::vector<double> positive_values(Dtype dtype) {
  const SmallFormat format = format_of(dtype);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int mantissas = 1 << format.mantissa_bits;
  std::vector<double> values;
  for (int exponent = 0; exponent < (1 << format.exponent_bits); ++exponent) {
    if (exponent == (1 << format.exponent_bits) - 1 && !format.e4m3) break;
    for (int mantissa = 0; mantissa < mantissas; ++mantissa) {
      const double fraction = exponent == 0 ? 0.0 : 1.0;
      values.push_back(std::ldexp(fraction + static_cast<double>(mantissa) / mantissas,
                                  std::max(exponent, 1) - bias));
    }
  }
  if (format.e4m3) values.pop_back();  // That code is NaN.
  return values;
}

const std::vector<double>& values_of(Dtype dtype) {
  static const std::vector<double> f16 = positive_values(Dtype::kF16);
  static const std::vector<double> bf16 = positive_values(Dtype::kBf16);
  static const std::vector<double> e4m3 = positive_values(Dtype::kF8E4m3);
  static const std::vector<double> e5m2 = positive_values(Dtype::kF8E5m2);
  switch (dtype) {
    case Dtype::kF16:
      return f16;
    case Dtype::kBf16:
      return bf16;
    case Dtype::kF8E4m3:
      return e4m3;
    default:
      return e5m2;
  }
}

std::uint32_t sign_bit(Dtype dtype) {
  return 1u << (format_of(dtype).exponent_bits + format_of(dtype).mantissa_bits);
}

template <class T>
T get(const Bytes& bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void put(Bytes& bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

template <class T>
T combine_reals(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
      if (a == b) return std::signbit(a) == (op == ReduceOp::kMin) ? a : b;
      return (a < b) == (op == ReduceOp::kMin) ? a : b;
    default:
      return a + b;
  }
}

template <class T>
T one_nan(T value) {
  if (!std::isnan(value)) return value;
  if constexpr (sizeof(T) == 4) return std::bit_cast<float>(0x7fc00000u);
  if constexpr (sizeof(T) == 8) return std::bit_cast<double>(0x7ff8000000000000u);
}

// `read(j)` returns input j of one element as an accumulator.
template <class T, class Read>
T reduce_reals(const Reduction& reduction, std::size_t inputs, const Read& read) {
  const auto scaled = [&](std::size_t j) {
    T value = read(j);
    if (reduction.factors != nullptr) value *= static_cast<T>(reduction.factors[j]);
    return value;
  };
  T sum = scaled(0);
  for (std::size_t j = 1; j < inputs; ++j) sum = combine_reals<T>(reduction.op, sum, scaled(j));
  if (reduction.op == ReduceOp::kAvg && reduction.output_form == Form::kElement) {
    sum /= static_cast<T>(reduction.divisor);
  }
  return one_nan(sum);
}

template <class T>
void reference_reals(const Reduction& reduction, const std::vector<Bytes>& inputs,
                     std::size_t lanes, Bytes& output) {
  for (std::size_t i = 0; i < lanes; ++i) {
    put(output, i, reduce_reals<T>(reduction, inputs.size(), [&](std::size_t j) {
          return get<T>(inputs[j], i);
        }));
  }
}

template <class T>
void reference_complex_product(const std::vector<Bytes>& inputs, std::size_t count, Bytes& output) {
  for (std::size_t i = 0; i < count; ++i) {
    T real = get<T>(inputs[0], 2 * i);
    T imaginary = get<T>(inputs[0], 2 * i + 1);
    for (std::size_t j = 1; j < inputs.size(); ++j) {
      const T c = get<T>(inputs[j], 2 * i);
      const T d = get<T>(inputs[j], 2 * i + 1);
      const T ac = real * c;
      const T bd = imaginary * d;
      const T ad = real * d;
      const T bc = imaginary * c;
      real = ac - bd;
      imaginary = ad + bc;
    }
    put(output, 2 * i, one_nan(real));
    put(output, 2 * i + 1, one_nan(imaginary));
  }
}

std::uint32_t code_at(Dtype dtype, const Bytes& bytes, std::size_t index) {
  return element_bytes(dtype) == 2 ? get<std::uint16_t>(bytes, index) : bytes[index];
}

void reference_small(const Reduction& reduction, const std::vector<Bytes>& inputs,
                     std::size_t count, Bytes& output) {
  const Dtype dtype = reduction.dtype;
  const bool wide = partial_bytes(dtype, reduction.op) == 4;
  const bool codes_in = !wide || reduction.input_form == Form::kElement;
  const bool codes_out = !wide || reduction.output_form == Form::kElement;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = reduce_reals<float>(reduction, inputs.size(), [&](std::size_t j) {
      return codes_in ? decode_small(dtype, code_at(dtype, inputs[j], i))
                      : get<float>(inputs[j], i);
    });
    if (!codes_out) {
      put(output, i, value);
    } else if (element_bytes(dtype) == 2) {
      put(output, i, static_cast<std::uint16_t>(encode_small(dtype, value)));
    } else {
      output[i] = static_cast<std::uint8_t>(encode_small(dtype, value));
    }
  }
}

template <class T>
T combine_integers(ReduceOp op, T a, T b) {
  // Uses wide unsigned integers, whose overflow is defined.
  const auto x = static_cast<std::uint64_t>(a);
  const auto y = static_cast<std::uint64_t>(b);
  switch (op) {
    case ReduceOp::kProduct:
      return static_cast<T>(x * y);
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kBand:
      return static_cast<T>(x & y);
    case ReduceOp::kBor:
      return static_cast<T>(x | y);
    case ReduceOp::kBxor:
      return static_cast<T>(x ^ y);
    default:
      return static_cast<T>(x + y);
  }
}

template <class T, class Wide>
void reference_average(const Reduction& reduction, const std::vector<Bytes>& inputs,
                       std::size_t count, Bytes& output) {
  for (std::size_t i = 0; i < count; ++i) {
    Wide sum = 0;
    for (const Bytes& input : inputs) {
      sum += reduction.input_form == Form::kPartial ? get<Wide>(input, i) : Wide{get<T>(input, i)};
    }
    if (reduction.output_form == Form::kPartial) {
      put(output, i, sum);
    } else {
      put(output, i, static_cast<T>(sum / static_cast<Wide>(reduction.divisor)));
    }
  }
}

template <class T, class Wide>
void reference_integers(const Reduction& reduction, const std::vector<Bytes>& inputs,
                        std::size_t count, Bytes& output) {
  if (reduction.op == ReduceOp::kAvg) {
    return reference_average<T, Wide>(reduction, inputs, count, output);
  }
  for (std::size_t i = 0; i < count; ++i) {
    T result = get<T>(inputs[0], i);
    for (std::size_t j = 1; j < inputs.size(); ++j) {
      result = combine_integers<T>(reduction.op, result, get<T>(inputs[j], i));
    }
    put(output, i, result);
  }
}

void reference_bool(const Reduction& reduction, const std::vector<Bytes>& inputs, std::size_t count,
                    Bytes& output) {
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t trues = 0;
    for (const Bytes& input : inputs) trues += input[i] != 0;
    switch (reduction.op) {
      case ReduceOp::kProduct:
      case ReduceOp::kMin:
      case ReduceOp::kBand:
        output[i] = trues == inputs.size();
        break;
      case ReduceOp::kBxor:
        output[i] = trues % 2;
        break;
      default:
        output[i] = trues > 0;
    }
  }
}

template <class T>
T interesting_real(std::mt19937& random) {
  static constexpr double kSpecials[] = {0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e-40, -1e-40, 65504.0};
  const std::uint32_t kind = random() % 64;
  if (kind == 0) return std::numeric_limits<T>::infinity();
  if (kind == 1) return std::numeric_limits<T>::quiet_NaN();
  if (kind == 2) return -std::numeric_limits<T>::infinity();
  if (kind < 12) return static_cast<T>(kSpecials[random() % std::size(kSpecials)]);
  if (kind < 20) {
    const std::uint64_t bits = (std::uint64_t{random()} << 32) | random();
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  return static_cast<T>((static_cast<double>(random()) / 4294967296.0 - 0.5) *
                        std::ldexp(1.0, static_cast<int>(random() % 24) - 10));
}

}  // namespace

float decode_small(Dtype dtype, std::uint32_t code) {
  const std::vector<double>& values = values_of(dtype);
  const std::uint32_t absolute = code & (sign_bit(dtype) - 1);
  double value = std::nan("");
  if (absolute < values.size()) {
    value = values[absolute];
  } else if (absolute == values.size() && !format_of(dtype).e4m3) {
    value = std::numeric_limits<double>::infinity();
  }
  return static_cast<float>((code & sign_bit(dtype)) != 0 ? -value : value);
}

std::uint32_t encode_small(Dtype dtype, float value) {
  if (std::isnan(value)) return nan_code(dtype);
  const SmallFormat format = format_of(dtype);
  const std::vector<double>& values = values_of(dtype);
  const std::uint32_t sign = std::signbit(value) ? sign_bit(dtype) : 0;
  const double absolute = std::fabs(static_cast<double>(value));
  const auto greatest = static_cast<std::uint32_t>(values.size()) - 1;
  if (std::isinf(absolute)) return sign | (format.e4m3 ? greatest : greatest + 1);
  const auto above = std::upper_bound(values.begin(), values.end(), absolute);
  const auto low = static_cast<std::uint32_t>(above - values.begin()) - 1;
  if (low == greatest && format.saturates) return sign | greatest;
  // Infinity starts at the next step after the greatest finite value.
  const double next = low == greatest ? 2 * values[low] - values[low - 1] : *above;
  const double to_low = absolute - values[low];
  const double to_next = next - absolute;
  if (to_low == to_next) return sign | (low + low % 2);
  if (low == greatest && to_next < to_low) return sign | (greatest + 1);
  return sign | (to_low < to_next ? low : low + 1);
}

std::size_t form_bytes(Dtype dtype, ReduceOp op, Form form) {
  return form == Form::kPartial ? partial_bytes(dtype, op) : element_bytes(dtype);
}

Bytes reference_reduce(const Reduction& reduction, const std::vector<Bytes>& inputs,
                       std::size_t count) {
  Bytes output(count * form_bytes(reduction.dtype, reduction.op, reduction.output_form));
  const bool product = reduction.op == ReduceOp::kProduct;
  switch (reduction.dtype) {
    case Dtype::kI8:
      reference_integers<std::int8_t, std::int64_t>(reduction, inputs, count, output);
      break;
    case Dtype::kU8:
      reference_integers<std::uint8_t, std::uint64_t>(reduction, inputs, count, output);
      break;
    case Dtype::kI16:
      reference_integers<std::int16_t, std::int64_t>(reduction, inputs, count, output);
      break;
    case Dtype::kU16:
      reference_integers<std::uint16_t, std::uint64_t>(reduction, inputs, count, output);
      break;
    case Dtype::kI32:
      reference_integers<std::int32_t, std::int64_t>(reduction, inputs, count, output);
      break;
    case Dtype::kU32:
      reference_integers<std::uint32_t, std::uint64_t>(reduction, inputs, count, output);
      break;
    case Dtype::kI64:
      reference_integers<std::int64_t, Int128>(reduction, inputs, count, output);
      break;
    case Dtype::kU64:
      reference_integers<std::uint64_t, UnsignedInt128>(reduction, inputs, count, output);
      break;
    case Dtype::kBool:
      reference_bool(reduction, inputs, count, output);
      break;
    case Dtype::kF32:
      reference_reals<float>(reduction, inputs, count, output);
      break;
    case Dtype::kF64:
      reference_reals<double>(reduction, inputs, count, output);
      break;
    case Dtype::kC64:
      product ? reference_complex_product<float>(inputs, count, output)
              : reference_reals<float>(reduction, inputs, 2 * count, output);
      break;
    case Dtype::kC128:
      product ? reference_complex_product<double>(inputs, count, output)
              : reference_reals<double>(reduction, inputs, 2 * count, output);
      break;
    default:
      reference_small(reduction, inputs, count, output);
  }
  return output;
}

Bytes interesting_elements(Dtype dtype, ReduceOp op, Form form, std::size_t count,
                           std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count * form_bytes(dtype, op, form));
  const bool wide_small =
      is_small(dtype) && form == Form::kPartial && partial_bytes(dtype, op) == 4;
  if (dtype == Dtype::kF32 || dtype == Dtype::kC64 || wide_small) {
    for (std::size_t i = 0; i < bytes.size() / 4; ++i)
      put(bytes, i, interesting_real<float>(random));
  } else if (dtype == Dtype::kF64 || dtype == Dtype::kC128) {
    for (std::size_t i = 0; i < bytes.size() / 8; ++i) {
      put(bytes, i, interesting_real<double>(random));
    }
  } else if (is_small(dtype)) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t code = encode_small(dtype, interesting_real<float>(random));
      const std::uint32_t any = random() % 8 == 0 ? static_cast<std::uint32_t>(random()) : code;
      if (element_bytes(dtype) == 2) {
        put(bytes, i, static_cast<std::uint16_t>(any));
      } else {
        bytes[i] = static_cast<std::uint8_t>(any);
      }
    }
  } else if (dtype == Dtype::kBool) {
    for (std::uint8_t& byte : bytes) {
      byte = static_cast<std::uint8_t>(random() % 4 == 0 ? random() : random() % 2);
    }
  } else if (partial_bytes(dtype, op) == 16 && form == Form::kPartial) {
    // Sums of some 64-bit values, because arbitrary 128-bit values would overflow.
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t low = (std::uint64_t{random()} << 32) | random();
      put(bytes, 2 * i, low);
      put(bytes, 2 * i + 1, static_cast<std::uint64_t>(random() % 1000));
    }
  } else if (partial_bytes(dtype, op) == 8 && form == Form::kPartial && element_bytes(dtype) < 8) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto sum = static_cast<std::int64_t>(random()) * 1000;
      const bool is_signed = static_cast<std::uint8_t>(dtype) % 2 == 0;
      put(bytes, i, is_signed && random() % 2 == 0 ? -sum : sum);
    }
  } else {
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  }
  return bytes;
}

}  // namespace ivy::comm
