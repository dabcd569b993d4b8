#include "agent/node/own_package.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace ivy {
namespace {

struct Row {
  const char* before;  // nullptr: not set.
  const char* package;
  const char* after;
};

TEST(OwnPackage, IsAppendedLast) {
  const Row rows[] = {{nullptr, "/p", "/p"},   {"", "/p", "/p"}, {"/a", "/p", "/a:/p"},
                      {"/a:", "/p", "/a::/p"}, {"/a", "", "/a"}, {"/a", "/with:colon", "/a"},
                      {nullptr, "", nullptr}};
  for (const Row& row : rows) {
    Environment environment;
    if (row.before != nullptr) set_variable(environment, "PYTHONPATH", row.before);
    append_package(environment, row.package);
    const std::string* after = find_variable(environment, "PYTHONPATH");
    ASSERT_EQ(after != nullptr, row.after != nullptr);
    if (after != nullptr) {
      EXPECT_EQ(*after, row.after);
    }
  }
}

TEST(OwnPackage, IsLookedForBesideTheProgram) {
  char name[] = "/tmp/ivy-package-XXXXXX";
  const std::filesystem::path root = mkdtemp(name);
  const std::filesystem::path program = root / "bin";
  std::filesystem::create_directories(program);
  EXPECT_EQ(own_package(program), "");
  EXPECT_EQ(own_package(""), "");
  std::ofstream(program / "ivycomm.zip") << "x";
  EXPECT_EQ(own_package(program), (program / "ivycomm.zip").string());
  std::filesystem::create_directories(root / "lib/ivyrun/python/ivycomm");
  EXPECT_EQ(own_package(program), (program / "ivycomm.zip").string())
      << "an empty folder is no package";
  std::ofstream(root / "lib/ivyrun/python/ivycomm/__init__.py") << "x";
  EXPECT_EQ(own_package(program), (root / "lib/ivyrun/python").string());
  std::filesystem::remove_all(root);
}

TEST(OwnPackage, ProgramDirectoryIsThatOfThisTest) {
  EXPECT_TRUE(std::filesystem::is_directory(program_directory()));
}

}  // namespace
}  // namespace ivy
