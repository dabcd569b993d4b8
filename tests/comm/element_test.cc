// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce/element.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "comm/reduce/identity.h"
#include "comm/reduce/reduce.h"
#include "tests/comm/kernels_under_test.h"

namespace ivy::comm {
namespace {

TEST(ElementTest, ReturnsSizesAndNames) {
  EXPECT_EQ(1u, element_bytes(Dtype::kI8));
  EXPECT_EQ(2u, element_bytes(Dtype::kBf16));
  EXPECT_EQ(4u, element_bytes(Dtype::kF32));
  EXPECT_EQ(8u, element_bytes(Dtype::kC64));
  EXPECT_EQ(16u, element_bytes(Dtype::kC128));
  EXPECT_EQ(1u, element_bytes(Dtype::kF8E5m2));
  EXPECT_EQ("f32", dtype_name(Dtype::kF32));
  EXPECT_EQ("f8e4m3", dtype_name(Dtype::kF8E4m3));
  EXPECT_EQ("sum", reduce_op_name(ReduceOp::kSum));
  EXPECT_EQ("premul_sum", reduce_op_name(ReduceOp::kPremulSum));
  std::set<std::string_view> names;
  for (const Dtype dtype : all_dtypes()) names.insert(dtype_name(dtype));
  EXPECT_EQ(kDtypeCount, names.size());
}

TEST(ElementTest, ReducesSupportedTypes) {
  // One row for each operation, in the order of Dtype: integers, f16 bf16 f32 f64, bool, complex,
  // fp8.
  const std::string rows[kReduceOpCount] = {
      "11111111"
      "1111"
      "1"
      "11"
      "11",  // sum
      "11111111"
      "1111"
      "1"
      "11"
      "11",  // avg
      "11111111"
      "1111"
      "1"
      "11"
      "11",  // product
      "11111111"
      "1111"
      "1"
      "00"
      "11",  // min
      "11111111"
      "1111"
      "1"
      "00"
      "11",  // max
      "11111111"
      "0000"
      "1"
      "00"
      "00",  // band
      "11111111"
      "0000"
      "1"
      "00"
      "00",  // bor
      "11111111"
      "0000"
      "1"
      "00"
      "00",  // bxor
      "00000000"
      "1111"
      "0"
      "11"
      "11",  // premul_sum
  };
  for (const ReduceOp op : all_ops()) {
    std::string row;
    for (const Dtype dtype : all_dtypes()) row += is_reducible(dtype, op) ? '1' : '0';
    EXPECT_EQ(rows[static_cast<std::size_t>(op)], row) << reduce_op_name(op);
  }
}

TEST(ElementTest, EveryInstructionSetHasAKernelForEachReduction) {
  for (const KernelTable* const table : kernel_tables()) {
    for (std::size_t dtype = 0; dtype < kDtypeCount; ++dtype) {
      for (std::size_t op = 0; op < kReduceOpCount; ++op) {
        const bool wanted = is_reducible(static_cast<Dtype>(dtype), static_cast<ReduceOp>(op));
        for (std::size_t forms = 0; forms < 4; ++forms) {
          EXPECT_EQ(wanted, table->kernels[dtype][op][forms / 2][forms % 2] != nullptr)
              << table->name << " " << dtype << " " << op << " " << forms;
        }
      }
    }
  }
}

TEST(ElementTest, ReturnsTheSizesOfPartials) {
  EXPECT_EQ(4u, partial_bytes(Dtype::kF16, ReduceOp::kSum));
  EXPECT_EQ(2u, partial_bytes(Dtype::kF16, ReduceOp::kMax));
  EXPECT_EQ(4u, partial_bytes(Dtype::kF8E4m3, ReduceOp::kPremulSum));
  EXPECT_EQ(8u, partial_bytes(Dtype::kI8, ReduceOp::kAvg));
  EXPECT_EQ(16u, partial_bytes(Dtype::kU64, ReduceOp::kAvg));
  EXPECT_EQ(8u, partial_bytes(Dtype::kU64, ReduceOp::kSum));
  EXPECT_EQ(1u, partial_bytes(Dtype::kBool, ReduceOp::kAvg));
  EXPECT_EQ(16u, partial_bytes(Dtype::kC128, ReduceOp::kAvg));
}

// If one of two inputs is the identity, the result is the other one for any value.
TEST(ElementTest, IdentityChangesNoElement) {
  for (const Dtype dtype : all_dtypes()) {
    for (std::uint8_t number = 0; number < kReduceOpCount; ++number) {
      const auto op = static_cast<ReduceOp>(number);
      // An average counts its inputs and a factor scales them; both start like a sum.
      if (!is_reducible(dtype, op) || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum) continue;
      const std::size_t bytes = element_bytes(dtype);
      std::vector<std::uint8_t> identity(256 * bytes);
      fill_with_identity(dtype, op, identity.data(), 256);
      for (const std::uint64_t value : {0, 1, 2, 3}) {
        // Numbers of every type: the identity of PRODUCT, 1, added `value` times.
        std::vector<std::uint8_t> given(256 * bytes, 0);
        std::vector<std::uint8_t> ones(256 * bytes);
        fill_with_identity(dtype, ReduceOp::kProduct, ones.data(), 256);
        const auto combine = [&](ReduceOp how, std::vector<std::uint8_t>& left,
                                 const std::vector<std::uint8_t>& right) {
          const void* const inputs[] = {left.data(), right.data()};
          Reduction reduction;
          reduction.dtype = dtype;
          reduction.op = how;
          reduce(reduction, {inputs, 2, left.data(), nullptr, 256});
        };
        for (std::uint64_t i = 0; i < value; ++i) combine(ReduceOp::kSum, given, ones);
        std::vector<std::uint8_t> result = given;
        combine(op, result, identity);
        EXPECT_EQ(result, given) << dtype_name(dtype) << " " << reduce_op_name(op) << " " << value;
      }
    }
  }
}

}  // namespace
}  // namespace ivy::comm
