// SPDX-License-Identifier: Apache-2.0
// Runs every input of the corpus once, without libFuzzer, so that fixed defects stay fixed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/targets.h"
#include "tests/support/leak_guard.h"

namespace ivy::fuzz {
namespace {

class CorpusTest : public testing::TestWithParam<Target> {
 protected:
  test::LeakGuard leaks_;
};

TEST_P(CorpusTest, PassesEveryInput) {
  const auto folder = std::filesystem::path(IVY_FUZZ_CORPUS) / GetParam().name;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry);
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty()) << folder;
  for (const auto& file : files) {
    SCOPED_TRACE(file);
    std::ifstream in(file, std::ios::binary);
    GetParam().run(std::string(std::istreambuf_iterator<char>(in), {}));
  }
  GetParam().run({});
}

INSTANTIATE_TEST_SUITE_P(Fuzz, CorpusTest, testing::ValuesIn(kTargets),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace ivy::fuzz
