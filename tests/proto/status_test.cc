// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

namespace ivy {
namespace {

Result<int> half(int number) {
  if (number % 2 != 0)
    return Error{Code::kInvalidArgument, std::to_string(number) + " is odd", "give an even number"};
  return number / 2;
}

Result<int> quarter(int number) {
  const int once = IVY_TRY(half(number));
  return IVY_TRY(half(once));
}

Result<void> is_even(int number) {
  IVY_CHECK(half(number));
  return {};
}

TEST(StatusTest, TryReturnsTheFirstError) {
  ASSERT_TRUE(quarter(8).ok());
  EXPECT_EQ(quarter(8).value(), 2);
  const Result<int> failed = quarter(6);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "3 is odd");
  EXPECT_TRUE(is_even(2).ok());
  EXPECT_EQ(is_even(3).error().code, Code::kInvalidArgument);
}

TEST(StatusTest, PutsTheOuterContextFirst) {
  const Error error = half(3).error().context("start worker").context("host node7");
  EXPECT_EQ(error.message, "host node7: start worker: 3 is odd");
  EXPECT_EQ(error.fix, "give an even number");
  EXPECT_EQ(error.code, Code::kInvalidArgument);
}

TEST(StatusTest, AppendsErrnoToTheMessage) {
  EXPECT_EQ(errno_error(Code::kNotFound, "open /x", ENOENT).message,
            "open /x: No such file or directory");
}

TEST(StatusTest, AcceptsMoveOnlyValues) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(5));
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 5);
}

TEST(StatusDeathTest, AbortsOnAccessToTheOtherSide) {
  EXPECT_DEATH((void)half(3).value(), "bug");
  EXPECT_DEATH((void)half(2).error(), "bug");
  EXPECT_DEATH((void)is_even(2).error(), "bug");
  EXPECT_DEATH(IVY_ASSERT(1 + 1 == 3), "assertion failed: 1 \\+ 1 == 3");
}

}  // namespace
}  // namespace ivy
