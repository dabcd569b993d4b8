// SPDX-License-Identifier: Apache-2.0
// The search of --fetch on a host, in a directory of the test.
#include "agent/node/roles/fetch_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace ivy {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

class FetchSearchTest : public testing::Test {
 protected:
  FetchSearchTest() {
    std::string name = (fs::temp_directory_path() / "ivysearchXXXXXX").string();
    root_ = fs::canonical(mkdtemp(name.data()));
    fs::create_directory(root_ / "work");
    fs::create_directory(root_ / "other");
  }
  ~FetchSearchTest() override { fs::remove_all(root_); }

  void file(const std::string& name, const std::string& text = "x") {
    const fs::path path = root_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  FileSearch search(std::size_t max_files = 100) {
    return {(root_ / "work").string(), max_files, [] {}};
  }
  Names found(const std::string& pattern) {
    FileSearch all = search();
    const bool has_match = all.add(pattern, 0);
    problems_.clear();
    for (const FileSearch::Problem& problem : all.problems())
      problems_.push_back(problem.path.substr((root_ / "work/").string().size()));
    Names names;
    for (const FileSearch::File& file : all.files()) names.push_back(file.path);
    std::sort(names.begin(), names.end());
    EXPECT_EQ(has_match, !names.empty());
    return names;
  }

  fs::path root_;
  Names problems_;
};

TEST_F(FetchSearchTest, MatchesNamesAsAShellDoes) {
  for (const char* name : {"work/a.pt", "work/b.pt", "work/.c.pt", "work/sub/d.pt", "work/e.txt"})
    file(name);
  EXPECT_EQ(found("*.pt"), (Names{"a.pt", "b.pt"}));
  EXPECT_EQ(found("./[ab].pt"), (Names{"a.pt", "b.pt"}));
  EXPECT_EQ(found(".*.pt"), (Names{".c.pt"}));
  EXPECT_EQ(found("*/d.pt"), (Names{"sub/d.pt"}));
  EXPECT_EQ(found("sub//d.pt"), (Names{"sub/d.pt"}));
  EXPECT_EQ(found("?.txt"), (Names{"e.txt"}));
  EXPECT_EQ(found("nothing/*"), Names());
  EXPECT_EQ(problems_, Names());
}

TEST_F(FetchSearchTest, TakesDirectoriesAsAWhole) {
  for (const char* name : {"work/out/a", "work/out/deep/er/b", "work/out/.hidden"}) file(name);
  EXPECT_EQ(found("out"), (Names{"out/.hidden", "out/a", "out/deep/er/b"}));
  EXPECT_EQ(found("out/"), (Names{"out/.hidden", "out/a", "out/deep/er/b"}));
  EXPECT_EQ(found("out/**"), (Names{"out/a", "out/deep/er/b"}));
  EXPECT_EQ(found("**/b"), (Names{"out/deep/er/b"}));
  EXPECT_EQ(found("**/deep"), (Names{"out/deep/er/b"}));
}

TEST_F(FetchSearchTest, FindsAbsolutePatternsOutsideOfTheWorkingDirectory) {
  file("other/x.log");
  const std::string below_root = root_.string().substr(1);
  EXPECT_EQ(found(root_.string() + "/other/*.log"), (Names{below_root + "/other/x.log"}));
}

TEST_F(FetchSearchTest, FollowsALinkThatThePatternNames) {
  file("other/data.bin");
  fs::create_symlink(root_ / "other", root_ / "work/out");
  fs::create_symlink(root_ / "other/data.bin", root_ / "work/one");
  EXPECT_EQ(found("out/*.bin"), (Names{"out/data.bin"}));
  EXPECT_EQ(found("one"), (Names{"one"}));
}

TEST_F(FetchSearchTest, ReportsALinkThatLeavesTheDirectory) {
  file("other/data.bin");
  file("work/out/real.bin");
  fs::create_symlink(root_ / "other/data.bin", root_ / "work/out/link.bin");
  fs::create_symlink(root_ / "other", root_ / "work/out/linked");
  fs::create_symlink("real.bin", root_ / "work/out/latest.bin");
  EXPECT_EQ(found("out/*.bin"), (Names{"out/latest.bin", "out/real.bin"}));
  EXPECT_EQ(problems_, (Names{"out/link.bin"}));
  EXPECT_EQ(found("out/*/data.bin"), Names());
  EXPECT_EQ(problems_, (Names{"out/linked"}));
}

TEST_F(FetchSearchTest, FollowsNoLinkToADirectoryBelowAWildcard) {
  file("work/out/a/x");
  fs::create_directory_symlink("..", root_ / "work/out/a/up");
  EXPECT_EQ(found("out/**"), (Names{"out/a/x"}));
  EXPECT_EQ(found("**/x"), (Names{"out/a/x"}));
}

TEST_F(FetchSearchTest, TakesAFileOfSeveralPatternsOnceForEachTarget) {
  file("work/a.pt", "12345");
  FileSearch all = search();
  EXPECT_TRUE(all.add("*.pt", 0));
  EXPECT_TRUE(all.add("a*", 0));
  EXPECT_TRUE(all.add("a*", 1));
  EXPECT_EQ(all.files().size(), 2u);
  EXPECT_EQ(all.bytes(), 10u);
}

TEST_F(FetchSearchTest, StopsAtTheLimit) {
  for (int i = 0; i < 5; ++i) file("work/" + std::to_string(i));
  FileSearch all = search(3);
  all.add("*", 0);
  EXPECT_TRUE(all.is_too_many());
  EXPECT_EQ(all.files().size(), 3u);
}

}  // namespace
}  // namespace ivy
