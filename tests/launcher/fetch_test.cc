// SPDX-License-Identifier: Apache-2.0
// The launcher's part of --fetch: values of the flag, names that hosts send, and the writer of
// files.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "launcher/fetch/fetch_names.h"
#include "launcher/fetch/fetch_writer.h"
#include "launcher/options/fetch_rule.h"
#include "launcher/options/option_values.h"
#include "proto/contract/resource_limit.h"
#include "proto/wire/stage_codec.h"

namespace ivy {
namespace {

std::string here(const std::string& name) {
  return (std::filesystem::current_path() / name).lexically_normal();
}

TEST(FetchRule, SplitsPatternAndDirectoryAtTheLastColonOutsideBrackets) {
  EXPECT_EQ(parse_fetch("out/*.pt")->pattern, "out/*.pt");
  EXPECT_EQ(parse_fetch("out/*.pt")->directory, here("fetched"));
  EXPECT_EQ(parse_fetch("ckpt/**:results")->directory, here("results"));
  EXPECT_EQ(parse_fetch("ckpt/**:/data/r/")->directory, "/data/r");
  EXPECT_EQ(parse_fetch("at/10:30:00/x:r")->pattern, "at/10:30:00/x");
  EXPECT_EQ(parse_fetch("[[:digit:]]*")->pattern, "[[:digit:]]*");
  EXPECT_EQ(parse_fetch("[:]x:r")->pattern, "[:]x");
}

TEST(FetchRule, RejectsPatternsThatCannotBeMeant) {
  for (const char* text :
       {"", ":results", "x:", "../x", "a/../b", ".", "/", "{node}/x", "a.{pt,bin}"})
    EXPECT_FALSE(parse_fetch(text).ok()) << text;
  EXPECT_TRUE(parse_fetch("/scratch/{host}/*").ok());
  EXPECT_TRUE(parse_fetch("a[{]b").ok());
}

TEST(FetchRule, ExpandsPlaceholdersForEachRank) {
  EXPECT_TRUE(is_per_rank("out/{rank}/x"));
  EXPECT_TRUE(is_per_rank("out/{local_rank}"));
  EXPECT_FALSE(is_per_rank("out/{host}/*"));
  EXPECT_EQ(expanded_pattern("{host}/r{rank}-{local_rank}.pt", {"node2", 9, 1}), "node2/r9-1.pt");
}

TEST(FetchNames, AcceptsOnlyPathsBelowADirectory) {
  for (const char* path : {"a", "a/b", "...", "a/..b", " ", "\xff\xfe", "a\nb"})
    EXPECT_TRUE(check_fetched_path(path).ok()) << path;
  for (const std::string& path :
       {std::string(), std::string("/a"), std::string("a//b"), std::string("a/"), std::string(".."),
        std::string("a/../../b"), std::string("./a"), std::string("a\0b", 3), std::string(300, 'x'),
        std::string(5000, '/')})
    EXPECT_FALSE(check_fetched_path(path).ok()) << path;
}

TEST(FetchNames, NamesDirectoriesOfHostsAndRanks) {
  EXPECT_EQ(fetched_host_name("user@node1"), "user@node1");
  EXPECT_EQ(fetched_host_name(".."), "_..");
  EXPECT_EQ(fetched_host_name("a/b"), "a_b");
  EXPECT_EQ(fetched_rank_name(7), "rank00007");
  EXPECT_EQ(numbered_directory("/r", 1), "/r");
  EXPECT_EQ(numbered_directory("/r", 3), "/r.3");
}

class FetchWriterTest : public testing::Test {
 protected:
  FetchWriterTest() {
    std::string name = (std::filesystem::temp_directory_path() / "ivyfetchXXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~FetchWriterTest() override { std::filesystem::remove_all(root_); }

  std::vector<FetchTarget> targets() const {
    return {{root_ + "/out", "node1", 0}, {root_ + "/out", "node2", 1}};
  }
  static FetchPart part(const std::string& path, const std::string& text,
                        std::uint32_t target = 0) {
    FetchPart part;
    part.mutable_file()->set_path(path);
    part.mutable_file()->set_size(text.size());
    part.mutable_file()->set_mode(0640);
    part.mutable_file()->set_mtime_ns(1'700'000'000'000'000'000);
    part.mutable_file()->set_target(target);
    part.set_size(static_cast<std::uint32_t>(text.size()));
    part.set_bytes(text);
    part.set_last(true);
    return part;
  }
  std::string text_of(const std::string& name) const {
    std::ifstream file(root_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::size_t files_below(const std::string& name) const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_ + "/" + name))
      if (entry.is_regular_file()) ++count;
    return count;
  }

  std::string root_;
  FetchWriter::Written written_;
};

TEST_F(FetchWriterTest, WritesFilesWithModeAndTimeOfTheHost) {
  FetchWriter writer(targets(), 022);
  ASSERT_TRUE(writer.open(10).ok());
  ASSERT_TRUE(writer.take(0, part("a/b/c.txt", "hello"), written_).ok());
  FetchPart packed = part("zeros", std::string(1000, 'z'));
  packed.set_bytes(stage::compressed(packed.bytes(), 1));
  packed.set_is_compressed(true);
  ASSERT_TRUE(writer.take(0, packed, written_).ok());
  EXPECT_EQ(text_of("out/node1/a/b/c.txt"), "hello");
  EXPECT_EQ(text_of("out/node1/zeros"), std::string(1000, 'z'));
  struct stat status {};
  ASSERT_EQ(stat((root_ + "/out/node1/a/b/c.txt").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
  EXPECT_EQ(status.st_mtim.tv_sec, 1'700'000'000);
  EXPECT_EQ(written_.files, 2u);
}

TEST_F(FetchWriterTest, KeepsTheFilesOfEarlierFetches) {
  for (const char* expected : {"out", "out.2", "out.3"}) {
    FetchWriter writer(targets(), 022);
    const auto chosen = writer.open(1);
    ASSERT_TRUE(chosen.ok());
    EXPECT_EQ(chosen->front(), root_ + "/" + expected);
    ASSERT_TRUE(writer.take(0, part("x", expected), written_).ok());
    EXPECT_EQ(text_of(std::string(expected) + "/node1/x"), expected);
  }
}

TEST_F(FetchWriterTest, UsesADirectoryThatHasOtherFiles) {
  std::filesystem::create_directories(root_ + "/out");
  std::ofstream(root_ + "/out/notes.txt") << "mine";
  FetchWriter writer(targets(), 022);
  EXPECT_EQ(writer.open(1)->front(), root_ + "/out");
}

TEST_F(FetchWriterTest, RejectsNamesOutsideOfItsDirectory) {
  FetchWriter writer(targets(), 022);
  ASSERT_TRUE(writer.open(1).ok());
  EXPECT_EQ(writer.take(0, part("../x", "evil"), written_).error().code, Code::kDataLoss);
  EXPECT_EQ(writer.take(1, part("x", "evil", 0), written_).error().code, Code::kDataLoss);
  EXPECT_EQ(writer.take(1, part("x", "evil", 7), written_).error().code, Code::kDataLoss);
  EXPECT_FALSE(std::filesystem::exists(root_ + "/out/x"));
}

TEST_F(FetchWriterTest, FollowsNoLinkInItsDirectories) {
  FetchWriter writer(targets(), 022);
  ASSERT_TRUE(writer.open(1).ok());
  ASSERT_TRUE(writer.take(0, part("first", "1"), written_).ok());
  std::filesystem::create_directory(root_ + "/elsewhere");
  std::filesystem::create_directory_symlink(root_ + "/elsewhere", root_ + "/out/node1/link");
  ASSERT_TRUE(writer.take(0, part("link/x", "evil"), written_).ok());
  ASSERT_EQ(written_.problems.size(), 1u);
  EXPECT_EQ(files_below("elsewhere"), 0u);
  EXPECT_EQ(files_below("out"), 1u);
}

TEST_F(FetchWriterTest, RejectsPartsThatDoNotMatchTheirFile) {
  FetchWriter writer(targets(), 022);
  ASSERT_TRUE(writer.open(1).ok());
  FetchPart longer = part("x", "12345");
  longer.mutable_file()->set_size(3);
  EXPECT_EQ(writer.take(0, longer, written_).error().code, Code::kDataLoss);
  writer.abandon(0);
  FetchPart bomb = part("y", std::string(100, 'y'));
  bomb.set_bytes(stage::compressed(std::string(1u << 20, 'y'), 1));
  bomb.set_is_compressed(true);
  EXPECT_EQ(writer.take(0, bomb, written_).error().code, Code::kDataLoss);
  writer.abandon(0);
  FetchPart orphan = part("z", "1");
  orphan.clear_file();
  EXPECT_EQ(writer.take(0, orphan, written_).error().code, Code::kDataLoss);
  EXPECT_EQ(files_below("out"), 0u);
}

TEST_F(FetchWriterTest, RemovesIncompleteFiles) {
  {
    FetchWriter writer(targets(), 022);
    ASSERT_TRUE(writer.open(1).ok());
    FetchPart first = part("x", "123");
    first.mutable_file()->set_size(10);
    first.set_last(false);
    ASSERT_TRUE(writer.take(0, first, written_).ok());
    EXPECT_EQ(files_below("out"), 1u);
  }
  EXPECT_EQ(files_below("out"), 0u);
}

TEST_F(FetchWriterTest, FailsBeforeItStartsIfTheDiskIsTooSmall) {
  FetchWriter writer(targets(), 022);
  const auto opened = writer.open(std::uint64_t{1} << 60);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message.find(" left"), std::string::npos) << opened.error().message;
}

TEST(Limits, AreReadByName) {
  EXPECT_EQ(parse_limit("nofile=65536")->value, 65536u);
  EXPECT_EQ(parse_limit("stack=unlimited")->value, kUnlimited);
  EXPECT_EQ(parse_limit("stack=8M")->value, 8u << 20);
  EXPECT_EQ(parse_limit("core=0")->value, 0u);
  EXPECT_EQ(parse_limit("fsize=8589934592")->value, std::uint64_t{1} << 33);
  for (const char* text : {"nofile", "nofile=", "nofile=8M", "files=3", "stack=-1", "cpu=1h"})
    EXPECT_FALSE(parse_limit(text).ok()) << text;
}

TEST(Limits, HaveTextsWithUnits) {
  EXPECT_EQ(limit_text(*find_resource("stack"), 8u << 20), "8 MiB");
  EXPECT_EQ(limit_text(*find_resource("stack"), kUnlimited), "unlimited");
  EXPECT_EQ(limit_text(*find_resource("cpu"), 60), "60 s");
  EXPECT_EQ(limit_text(*find_resource("nofile"), 1024), "1024");
}

}  // namespace
}  // namespace ivy
