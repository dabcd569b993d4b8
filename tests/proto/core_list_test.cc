// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/core_list.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

TEST(CoreListTest, ReadsTheKernelsFormat) {
  const std::pair<const char*, CoreList> cases[] = {{"", {}},
                                                    {"\n", {}},
                                                    {"0\n", {0}},
                                                    {"0-3,8", {0, 1, 2, 3, 8}},
                                                    {"8,0-1", {0, 1, 8}},
                                                    {"1,1,0-1", {0, 1}},
                                                    {"8191", {8191}}};
  for (const auto& [text, cores] : cases) EXPECT_EQ(parse_core_list(text), cores) << text;
  for (const char* text : {"8192", "-1", "1-", "3-1", "a", "1,", ",1", "1 2", "0-99999999999"})
    EXPECT_TRUE(parse_core_list(text).empty()) << text;
}

TEST(CoreListTest, WritesTheShortestForm) {
  EXPECT_EQ(core_list_text({}), "");
  EXPECT_EQ(core_list_text({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(common_cores({0, 1, 2}, {1, 2, 3}), (CoreList{1, 2}));
  EXPECT_EQ(joined_cores({0, 2}, {1, 2}), (CoreList{0, 1, 2}));
}

}  // namespace
}  // namespace ivy
