// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "comm/reduce/reduce.h"
#include "tests/comm/kernels_under_test.h"

namespace ivy::comm {
namespace {

constexpr std::size_t kSizes[] = {0,    1,    7,    63,   64,    65,    255,
                                  4095, 4096, 4097, 8191, 12345, 70001, 1 << 20};
constexpr std::size_t kOffsets[] = {0, 1, 16, 63};

std::vector<std::uint8_t> random_bytes(std::size_t count) {
  std::mt19937 random(7);
  std::vector<std::uint8_t> bytes(count);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

class CopyTest : public ::testing::TestWithParam<const KernelTable*> {};

TEST_P(CopyTest, CopiesOnlyTheGivenBytes) {
  const std::vector<std::uint8_t> source = random_bytes((1 << 20) + 64);
  for (const std::size_t size : kSizes) {
    for (const std::size_t offset : kOffsets) {
      for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
        SCOPED_TRACE(std::to_string(size) + " bytes at " + std::to_string(offset));
        GuardedBuffer to(size, offset);
        copy_with(*GetParam(), {to.data(), source.data() + offset / 2, size}, stores);
        ASSERT_EQ(0, std::memcmp(to.data(), source.data() + offset / 2, size));
        ASSERT_TRUE(to.is_intact());
      }
    }
  }
}

TEST_P(CopyTest, ReadsOnlyTheGivenBytes) {
  for (const std::size_t size : {1, 65, 4097, 12288}) {
    for (const bool at_start : {false, true}) {
      FencedBuffer from(size, at_start);
      FencedBuffer to(size, at_start);
      std::memset(from.data(), 0x5c, size);
      copy_with(*GetParam(), {to.data(), from.data(), size}, Stores::kStreaming);
      EXPECT_EQ(0, std::memcmp(to.data(), from.data(), size));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CopyTest, ::testing::ValuesIn(kernel_tables()),
                         [](const auto& with) { return std::string(with.param->name); });

TEST(CopyChoice, WorksWithoutNamingKernels) {
  const std::vector<std::uint8_t> source = random_bytes(10000);
  std::vector<std::uint8_t> to(10000);
  copy(to.data(), source.data(), source.size(), Stores::kStreaming);
  EXPECT_EQ(source, to);
  to.assign(10000, 0);
  copy(to.data(), source.data(), source.size(), Stores::kCached);
  EXPECT_EQ(source, to);
}

}  // namespace
}  // namespace ivy::comm
