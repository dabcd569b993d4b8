// SPDX-License-Identifier: Apache-2.0
// Small floating point formats: every code, every boundary between two codes, and many other
// numbers, through the kernels of every instruction set.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "tests/comm/kernels_under_test.h"
#include "tests/comm/reduce_reference.h"

namespace ivy::comm {
namespace {

using Param = std::tuple<const KernelTable*, Dtype>;

class ConversionTest : public ::testing::TestWithParam<Param> {
 protected:
  const KernelTable& table() { return *std::get<0>(GetParam()); }
  Dtype dtype() { return std::get<1>(GetParam()); }
  std::size_t bytes() { return element_bytes(dtype()); }
  std::uint32_t codes() { return 1u << (8 * bytes()); }

  std::uint32_t code_at(const Bytes& memory, std::size_t index) {
    if (bytes() == 1) return memory[index];
    return memory[2 * index] | static_cast<std::uint32_t>(memory[2 * index + 1] << 8);
  }

  Bytes all_codes() {
    Bytes memory;
    for (std::uint32_t code = 0; code < codes(); ++code) {
      memory.push_back(static_cast<std::uint8_t>(code));
      if (bytes() == 2) memory.push_back(static_cast<std::uint8_t>(code >> 8));
    }
    return memory;
  }

  Bytes narrow(const std::vector<float>& values) {
    Bytes codes_out(values.size() * bytes());
    const void* const input = values.data();
    reduce_with(table(), {.dtype = dtype(), .input_form = Form::kPartial},
                {&input, 1, codes_out.data(), nullptr, values.size()});
    return codes_out;
  }

  void expect_narrows(const std::vector<float>& values) {
    const Bytes got = narrow(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(encode_small(dtype(), values[i]), code_at(got, i))
          << std::hexfloat << values[i] << " at " << i;
    }
  }
};

TEST_P(ConversionTest, WidensEveryCodeExactly) {
  const Bytes memory = all_codes();
  const void* const input = memory.data();
  std::vector<float> values(codes());
  reduce_with(table(), {.dtype = dtype(), .output_form = Form::kPartial},
              {&input, 1, values.data(), nullptr, values.size()});
  for (std::uint32_t code = 0; code < codes(); ++code) {
    const float expected = decode_small(dtype(), code);
    if (std::isnan(expected)) {
      ASSERT_EQ(0x7fc00000u, std::bit_cast<std::uint32_t>(values[code])) << code;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(expected), std::bit_cast<std::uint32_t>(values[code]))
          << code;
    }
  }
}

TEST_P(ConversionTest, KeepsEveryCode) {
  const Bytes memory = all_codes();
  const void* const input = memory.data();
  Bytes output(memory.size());
  reduce_with(table(), {.dtype = dtype()}, {&input, 1, output.data(), nullptr, codes()});
  for (std::uint32_t code = 0; code < codes(); ++code) {
    const float value = decode_small(dtype(), code);
    ASSERT_EQ(std::isnan(value) ? encode_small(dtype(), value) : code, code_at(output, code));
  }
}

TEST_P(ConversionTest, RoundsToNearestWithTiesToEven) {
  std::vector<float> values;
  for (std::uint32_t code = 0; code + 1 < codes() / 2; ++code) {
    const double low = decode_small(dtype(), code);
    double high = decode_small(dtype(), code + 1);
    if (!std::isfinite(low)) continue;
    if (!std::isfinite(high)) high = 2 * low - decode_small(dtype(), code - 1);
    const auto tie = static_cast<float>((low + high) / 2);
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float value :
         {static_cast<float>(low), tie, std::nextafter(tie, 0.0f), std::nextafter(tie, infinity)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  expect_narrows(values);
}

TEST_P(ConversionTest, NarrowsNumbersLikeTheReference) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values = {infinity, -infinity, 3e38f,    -3e38f,   1e-45f,   -1e-45f,  448.0f,
                               464.0f,   465.0f,    57344.0f, 61440.0f, 65519.0f, 65520.0f, 1e6f};
  // The step reaches all exponents, with a different mantissa each time.
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 6151) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  expect_narrows(values);
}

// Checks the table behind the references against numbers from the definitions of the formats.
TEST(ConversionReference, MatchesTheDefinitionsOfTheFormats) {
  EXPECT_EQ(65504.0f, decode_small(Dtype::kF16, 0x7bff));
  EXPECT_EQ(0x1p-24f, decode_small(Dtype::kF16, 1));
  EXPECT_EQ(-2.0f, decode_small(Dtype::kF16, 0xc000));
  EXPECT_EQ(1.0f, decode_small(Dtype::kBf16, 0x3f80));
  EXPECT_EQ(448.0f, decode_small(Dtype::kF8E4m3, 0x7e));
  EXPECT_EQ(0x1p-9f, decode_small(Dtype::kF8E4m3, 1));
  EXPECT_TRUE(std::isnan(decode_small(Dtype::kF8E4m3, 0xff)));
  EXPECT_EQ(57344.0f, decode_small(Dtype::kF8E5m2, 0x7b));
  EXPECT_EQ(0x1p-16f, decode_small(Dtype::kF8E5m2, 1));
  EXPECT_TRUE(std::isinf(decode_small(Dtype::kF8E5m2, 0x7c)));
  EXPECT_EQ(0x7c00u, encode_small(Dtype::kF16, 65520.0f));
  EXPECT_EQ(0x7bffu, encode_small(Dtype::kF16, 65519.0f));
  EXPECT_EQ(0x7f80u, encode_small(Dtype::kBf16, 3.4e38f));
  EXPECT_EQ(0x7eu, encode_small(Dtype::kF8E4m3, 1e30f));
  EXPECT_EQ(0x7bu, encode_small(Dtype::kF8E5m2, 1e30f));
}

std::string param_name(const ::testing::TestParamInfo<Param>& info) {
  return std::string(std::get<0>(info.param)->name) + "_" +
         std::string(dtype_name(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Kernels, ConversionTest,
                         ::testing::Combine(::testing::ValuesIn(kernel_tables()),
                                            ::testing::Values(Dtype::kF16, Dtype::kBf16,
                                                              Dtype::kF8E4m3, Dtype::kF8E5m2)),
                         param_name);

}  // namespace
}  // namespace ivy::comm
