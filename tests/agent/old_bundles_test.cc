// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/old_bundles.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

namespace ivy {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kDay = 24 * 60 * 60;

std::string bundle(char digit) { return std::string(24, digit) + "-x86_64"; }

TEST(OldBundles, AreRecognizedByName) {
  EXPECT_TRUE(is_bundle_directory(bundle('a')));
  for (const char* name :
       {"", "bin", "aaaa-x86_64", "aaaaaaaaaaaaaaaaaaaaaaaa-", "aaaaaaaaaaaaaaaaaaaaaaaa",
        "Aaaaaaaaaaaaaaaaaaaaaaaa-x86_64", "aaaaaaaaaaaaaaaaaaaaaaaaa-x86_64", ".new.abcdef"})
    EXPECT_FALSE(is_bundle_directory(name)) << name;
}

TEST(OldBundles, LoseTheirPartsAfterADay) {
  EXPECT_EQ(old_bundles({{".part.cafe-node1", kDay + 1}, {".part.cafe-node2", kDay - 1}}),
            (std::vector<std::string>{".part.cafe-node1"}));
}

TEST(OldBundles, AreRemovedAfterAMonthExceptTheLastThree) {
  const std::int64_t old = 31 * kDay;
  EXPECT_TRUE(old_bundles({}).empty());
  EXPECT_TRUE(old_bundles({{bundle('a'), old}, {bundle('b'), old}, {bundle('c'), old}}).empty());
  EXPECT_EQ(old_bundles({{bundle('a'), old + 1},
                         {bundle('b'), 0},
                         {bundle('c'), old},
                         {bundle('d'), 29 * kDay},
                         {bundle('e'), 29 * kDay}}),
            (std::vector<std::string>{bundle('c'), bundle('a')}));
  EXPECT_TRUE(
      old_bundles(
          {{bundle('a'), 29 * kDay}, {bundle('b'), 0}, {bundle('c'), 0}, {bundle('d'), 29 * kDay}})
          .empty());
}

TEST(OldBundles, RemovesLeftoversOfAKilledInstallationAfterADay) {
  EXPECT_EQ(
      old_bundles({{".new.abcdef", kDay + 1}, {".new.ghijkl", kDay - 1}, {"mine", 99 * kDay}}),
      std::vector<std::string>{".new.abcdef"});
}

class SweepTest : public testing::Test {
 protected:
  SweepTest() {
    char name[] = "/tmp/ivy-bundles-XXXXXX";
    place_ = mkdtemp(name);
  }
  ~SweepTest() override { fs::remove_all(place_); }

  std::string make(const std::string& name, std::int64_t age_s) {
    const fs::path directory = place_ / name;
    fs::create_directories(directory / "__pycache__");
    std::ofstream(directory / "ivy-node") << "x";
    const timespec when{std::time(nullptr) - age_s, 0};
    const timespec times[] = {when, when};
    EXPECT_EQ(utimensat(AT_FDCWD, directory.c_str(), times, 0), 0);
    return directory;
  }
  bool exists(const std::string& name) const { return fs::exists(place_ / name); }

  fs::path place_;
};

TEST_F(SweepTest, RemovesOldBundlesOnceADay) {
  const std::string ours = make(bundle('f'), 40 * kDay);
  for (const char digit : {'a', 'b', 'c'}) make(bundle(digit), 50 * kDay);
  make(bundle('d'), 60 * kDay);
  make(".new.abcdef", 2 * kDay);
  make("something else", 90 * kDay);
  sweep_old_bundles(ours);
  EXPECT_TRUE(fs::exists(ours)) << "it is in use";
  EXPECT_FALSE(exists(bundle('d')));
  EXPECT_FALSE(exists(".new.abcdef"));
  EXPECT_TRUE(exists("something else"));
  // `ours` and two other bundles are the three last used.
  EXPECT_EQ(exists(bundle('a')) + exists(bundle('b')) + exists(bundle('c')), 2);
  make(bundle('d'), 60 * kDay);
  sweep_old_bundles(ours);
  EXPECT_TRUE(exists(bundle('d'))) << "the last sweep was today";
}

// A sweep is interrupted when its process exits. If it removed a bundle in place, an interrupted
// removal would leave a bundle that looks whole.
TEST_F(SweepTest, RenamesABundleBeforeRemovingItAndFinishesAnInterruptedSweep) {
  const std::string ours = make(bundle('a'), 2 * kDay);
  for (const char digit : {'b', 'c', 'd'}) make(bundle(digit), 60 * kDay - digit);
  make(".old." + bundle('b'), 99 * kDay);
  sweep_old_bundles(ours);
  EXPECT_TRUE(fs::exists(place_ / bundle('b') / "ivy-node")) << "the name it needs was taken";
  EXPECT_FALSE(exists(".old." + bundle('b')));
  make(bundle('a'), 2 * kDay);
  sweep_old_bundles(ours);
  EXPECT_FALSE(exists(bundle('b')));
  EXPECT_FALSE(exists(".old." + bundle('b')));
}

TEST_F(SweepTest, KeepsDirectoriesThatAreNotBundles) {
  make(bundle('a'), 90 * kDay);
  for (const char digit : {'b', 'c', 'd', 'e'}) make(bundle(digit), 80 * kDay);
  sweep_old_bundles(make("bin", 90 * kDay));
  sweep_old_bundles("");
  EXPECT_TRUE(exists(bundle('a')));
}

}  // namespace
}  // namespace ivy
