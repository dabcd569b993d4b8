// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/stage_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "launcher/stage/stage_patterns.h"

namespace ivy::stage {
namespace {

SourceFile file(const std::string& path, std::uint64_t size, const std::string& hash = "h") {
  SourceFile made;
  made.path = path;
  made.file = "/r/" + path;
  made.mode = S_IFREG | 0644;
  made.size = size;
  made.sha256 = hash;
  return made;
}

SourceFile link_to(const std::string& path, const std::string& target) {
  SourceFile made;
  made.path = path;
  made.mode = S_IFLNK | 0777;
  made.link = target;
  return made;
}

TEST(StagePatterns, GlobMatchesWithinNamesAndDeepOnesAcrossDirectories) {
  EXPECT_TRUE(matches_glob("*.py", "train.py"));
  EXPECT_FALSE(matches_glob("*.py", "a/train.py"));
  EXPECT_TRUE(matches_glob("a/*.py", "a/train.py"));
  EXPECT_FALSE(matches_glob("a/*.py", "a/b/train.py"));
  EXPECT_TRUE(matches_glob("a/**", "a/b/train.py"));
  EXPECT_TRUE(matches_glob("a/**/t.py", "a/t.py"));
  EXPECT_TRUE(matches_glob("**/t.py", "a/b/t.py"));
  EXPECT_TRUE(matches_glob("?[a-c]*", "xb"));
  EXPECT_FALSE(matches_glob("[!a-c]", "b"));
  EXPECT_FALSE(matches_glob("a?b", "a/b"));
  EXPECT_FALSE(matches_glob("abc", "ab"));
}

TEST(StagePatterns, PatternWithoutSlashMatchesAtAnyDepth) {
  const Patterns patterns({"*.py"});
  EXPECT_TRUE(patterns.selects("train.py"));
  EXPECT_TRUE(patterns.selects("a/b/train.py"));
  EXPECT_FALSE(patterns.selects("a/b/train.txt"));
}

TEST(StagePatterns, DirectorySelectsEverythingBelow) {
  const Patterns patterns({"conf/"});
  EXPECT_TRUE(patterns.selects("conf/a/b.toml"));
  EXPECT_FALSE(patterns.selects("other/b.toml"));
}

TEST(StagePatterns, ExclusionAloneKeepsEverythingElse) {
  const Patterns patterns({"!data", "!*.log"});
  EXPECT_FALSE(patterns.has_selection());
  EXPECT_TRUE(patterns.selects("train.py"));
  EXPECT_FALSE(patterns.selects("data/big.bin"));
  EXPECT_FALSE(patterns.selects("a/x.log"));
  EXPECT_TRUE(patterns.leaves_out("data"));
}

TEST(StageFiles, LinkInsideIsAcceptedAndOneThatLeavesIsNamed) {
  EXPECT_TRUE(link_stays_inside("a/link", "../b"));
  EXPECT_FALSE(link_stays_inside("a/link", "../../b"));
  EXPECT_FALSE(link_stays_inside("link", "/etc/passwd"));
  EXPECT_FALSE(link_stays_inside("a/link", "../../r/a/b"));
  const Result<void> checked = check_files({link_to("a/link", "../../b")}, "/r", 100);
  ASSERT_FALSE(checked.ok());
  EXPECT_NE(checked.error().message.find("/r/a/link is a symbolic link to ../../b"),
            std::string::npos);
}

TEST(StageFiles, NameThatIsNotUtf8IsShownEscaped) {
  const Result<void> checked = check_files({file("a\xff", 1)}, "/r", 100);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().message, "/r/a\\xff: its name is not UTF-8");
}

TEST(StageFiles, FileAboveTheLimitIsNamed) {
  const Result<void> checked = check_files({file("a", 1), file("big", 2048)}, "/r", 1024);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().message, "/r/big has 2.0 KiB, more than --stage-limit 1.0 KiB");
}

TEST(StageFiles, TreeAboveTheLimitNamesItsLargestDirectories) {
  const Result<void> checked =
      check_files({file("d/a", 600), file("d/b", 600), file("c", 10)}, "/r", 1024);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().message,
            "/r has 3 files, 1.2 KiB, more than --stage-limit 1.0 KiB; the largest: d/ (1.2 KiB), "
            "c (10 B)");
}

TEST(StageFiles, ManifestSendsEqualContentsOnce) {
  const Manifest manifest =
      make_manifest({file("a", 1, "x"), file("b", 1, "x"), file("c", 2, "y"), link_to("l", "a")});
  EXPECT_EQ(manifest.message.objects_size(), 2);
  EXPECT_EQ(manifest.sources.size(), 2u);
  ASSERT_EQ(manifest.message.entries_size(), 4);
  EXPECT_EQ(manifest.message.entries(1).object(), 0u);
  EXPECT_EQ(manifest.message.entries(2).object(), 1u);
  EXPECT_EQ(manifest.message.entries(3).link(), "a");
}

TEST(StageFiles, WorkingDirectoryKeepsItsPlaceInTheTree) {
  EXPECT_EQ(staged_directory("/home/u/proj", "/home/u/proj", "/t"), "/t");
  EXPECT_EQ(staged_directory("/home/u/proj", "/home/u/proj/sub/x", "/t"), "/t/sub/x");
  EXPECT_EQ(staged_directory("/home/u/proj", "/home/u/project", "/t"), "/t");
  EXPECT_EQ(staged_directory("/home/u/proj", "/home/u", "/t"), "/t");
}

TEST(StageFiles, ProgramIsFoundFromTheStagedDirectory) {
  EXPECT_EQ(staged_program("/p", "/p", "train.py"), "train.py");
  EXPECT_EQ(staged_program("/p", "/p/sub", "../train.py"), "../train.py");
  EXPECT_EQ(staged_program("/p", "/p/sub", "/p/train.py"), "./../train.py");
  EXPECT_EQ(staged_program("/p/proj", "/p", "proj/train.py"), "./train.py");
  EXPECT_EQ(staged_program("/p", "/p", "/usr/bin/env"), "/usr/bin/env");
  EXPECT_EQ(staged_program("/p", "/q", "hostname"), "hostname");
}

TEST(StageFiles, TreeNameIsSafeInAPath) {
  EXPECT_EQ(tree_name("/home/u/my proj", "0123456789abcdef"), "my_proj-0123456789ab");
  EXPECT_EQ(tree_name("/", "0123456789abcdef"), "tree-0123456789ab");
  EXPECT_EQ(tree_name("/x/.hidden", "0123456789abcdef"), "hidden-0123456789ab");
}

TEST(StageFiles, TextsAreReadable) {
  EXPECT_EQ(files_text(1204, 851'443'712), "1,204 files, 812 MiB");
  EXPECT_EQ(files_text(1, 1536), "1 file, 1.5 KiB");
  EXPECT_EQ(size_text(0), "0 B");
}

}  // namespace
}  // namespace ivy::stage
