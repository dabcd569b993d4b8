// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/stage_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "proto/os/files.h"

namespace ivy::stage {
namespace {

constexpr std::uint64_t kUnlimited = ~std::uint64_t{0} / 2;
constexpr std::uint64_t kLongAge = 1'000'000;

class StageCacheTest : public testing::Test {
 protected:
  StageCacheTest() {
    std::string pattern = "/tmp/ivy-stage-test-XXXXXX";
    top_ = mkdtemp(pattern.data());
  }
  ~StageCacheTest() override { std::filesystem::remove_all(top_); }

  StageCache open() { return StageCache::open(top_ + "/cache", "host").value(); }

  static StageObject object_of(const std::string& bytes) {
    Sha256 hash;
    hash.add(bytes);
    StageObject object;
    object.set_sha256(hash.digest());
    object.set_size(bytes.size());
    return object;
  }

  static void add(StageManifest& manifest, const std::string& path, const std::string& bytes,
                  mode_t mode = 0644) {
    StageEntry& entry = *manifest.add_entries();
    entry.set_path(path);
    entry.set_mode(S_IFREG | mode);
    entry.set_mtime_ns(1'500'000'000'000'000'000);
    entry.set_object(static_cast<std::uint32_t>(manifest.objects_size()));
    *manifest.add_objects() = object_of(bytes);
  }

  static void keep(StageCache& cache, const std::string& bytes) {
    const StageObject object = object_of(bytes);
    IncomingObject incoming = cache.begin(object, 0).value();
    ASSERT_TRUE(incoming.write(bytes).ok());
    ASSERT_TRUE(cache.finish(object, incoming).ok());
  }

  std::string top_;
};

TEST_F(StageCacheTest, KeepsAnObjectUnderItsHash) {
  StageCache cache = open();
  EXPECT_FALSE(cache.has(object_of("text")));
  keep(cache, "text");
  EXPECT_TRUE(cache.has(object_of("text")));
  EXPECT_TRUE(open().has(object_of("text")));
}

TEST_F(StageCacheTest, RejectsBytesThatDifferFromTheHash) {
  StageCache cache = open();
  const StageObject object = object_of("text");
  IncomingObject incoming = cache.begin(object, 0).value();
  ASSERT_TRUE(incoming.write("tex!").ok());
  EXPECT_EQ(cache.finish(object, incoming).error().code, Code::kDataLoss);
  EXPECT_FALSE(cache.has(object));
  EXPECT_EQ(cache.partial_bytes(object), 0u);
}

TEST_F(StageCacheTest, ContinuesAnInterruptedObject) {
  const StageObject object = object_of("first second");
  {
    StageCache cache = open();
    IncomingObject incoming = cache.begin(object, 0).value();
    ASSERT_TRUE(incoming.write("first ").ok());
  }
  StageCache cache = open();
  ASSERT_EQ(cache.partial_bytes(object), 6u);
  IncomingObject incoming = cache.begin(object, 6).value();
  ASSERT_TRUE(incoming.write("second").ok());
  EXPECT_TRUE(cache.finish(object, incoming).ok());
  EXPECT_TRUE(cache.has(object));
}

TEST_F(StageCacheTest, WriterOfATreeCannotChangeTheCache) {
  StageCache cache = open();
  StageManifest manifest;
  add(manifest, "a/b.txt", "text", 0755);
  add(manifest, "empty", "");
  StageEntry& link = *manifest.add_entries();
  link.set_path("a/link");
  link.set_mode(S_IFLNK | 0777);
  link.set_link("b.txt");
  keep(cache, "text");
  const std::string tree = cache.make_tree("proj-1", manifest).value();
  EXPECT_EQ(tree, top_ + "/cache/trees/proj-1");
  EXPECT_EQ(read_file(tree + "/a/link", 100), "text");
  EXPECT_EQ(read_file(tree + "/empty", 100), "");
  struct stat status {};
  ASSERT_EQ(stat((tree + "/a/b.txt").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0755u);
  EXPECT_EQ(status.st_mtim.tv_sec, 1'500'000'000);
  ASSERT_TRUE(overwrite(tree + "/a/b.txt", "changed"));
  EXPECT_EQ(read_file(cache.make_tree("proj-2", manifest).value() + "/a/b.txt", 100), "text");
}

TEST_F(StageCacheTest, UnsafePathIsRejectedAndLeavesNoTree) {
  StageCache cache = open();
  for (const char* path : {"../x", "/x", "a/../../x", "a//b", "."}) {
    StageManifest manifest;
    add(manifest, path, "");
    EXPECT_FALSE(cache.make_tree("proj-1", manifest).ok()) << path;
  }
  EXPECT_TRUE(names_in(top_ + "/cache/trees").empty());
}

TEST_F(StageCacheTest, EvictionRemovesTheOldestButNoTreeInUse) {
  StageCache cache = open();
  keep(cache, "text");
  StageManifest manifest;
  add(manifest, "b.txt", "text");
  {
    StageCache earlier = open();
    ASSERT_TRUE(earlier.make_tree("old-1", manifest).ok());
  }
  ASSERT_TRUE(cache.make_tree("new-1", manifest).ok());
  cache.evict(kUnlimited, kLongAge);
  EXPECT_EQ(names_in(top_ + "/cache/trees").size(), 4u);
  cache.evict(0, kLongAge);
  EXPECT_EQ(names_in(top_ + "/cache/trees"), (std::vector<std::string>{"new-1", "new-1.lock"}));
  EXPECT_FALSE(cache.has(object_of("text")));
}

TEST_F(StageCacheTest, EvictionWaitsForOtherJobsThatUseTheCache) {
  StageCache cache = open();
  keep(cache, "text");
  const StageCache other = open();
  cache.evict(0, 0);
  EXPECT_TRUE(cache.has(object_of("text")));
}

TEST(StageCacheRoot, IsInTheUsersCacheUnlessOneIsNamed) {
  EXPECT_EQ(cache_root("", "/home/u", "").value(), "/home/u/.cache/ivyrun/stage");
  EXPECT_EQ(cache_root("", "/home/u", "/c").value(), "/c/ivyrun/stage");
  EXPECT_EQ(cache_root("/scratch/x", "", "").value(), "/scratch/x");
  EXPECT_EQ(cache_root("~/x", "/home/u", "").value(), "/home/u/x");
  EXPECT_FALSE(cache_root("", "", "").ok());
}

}  // namespace
}  // namespace ivy::stage
