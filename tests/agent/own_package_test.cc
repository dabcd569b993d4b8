// SPDX-License-Identifier: Apache-2.0
#include "agent/node/facts/own_package.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "agent/node/workers/python_hook.h"
#include "proto/os/own_program.h"

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

TEST(OwnPackage, IsFoundNextToTheProgram) {
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
      << "an empty folder is not a package";
  std::ofstream(root / "lib/ivyrun/python/ivycomm/__init__.py") << "x";
  EXPECT_EQ(own_package(program), (root / "lib/ivyrun/python").string());
  std::filesystem::remove_all(root);
}

TEST(OwnHook, IsFoundNextToTheProgram) {
  char name[] = "/tmp/ivy-package-XXXXXX";
  const std::filesystem::path root = mkdtemp(name);
  const std::filesystem::path program = root / "bin";
  std::filesystem::create_directories(program);
  EXPECT_EQ(own_hook(program), "");
  EXPECT_EQ(own_hook(""), "");
  std::ofstream(program / "sitecustomize.py") << "x";
  EXPECT_EQ(own_hook(program), program.string());
  std::filesystem::create_directories(root / "lib/ivyrun/hook");
  EXPECT_EQ(own_hook(program), program.string()) << "an empty folder is not a hook";
  std::ofstream(root / "lib/ivyrun/hook/sitecustomize.py") << "x";
  EXPECT_EQ(own_hook(program), (root / "lib/ivyrun/hook").string());
  std::filesystem::remove_all(root);
}

TEST(OwnHook, IsWrittenIntoTheJobsDirectoryIfNoneIsInstalled) {
  char name[] = "/tmp/ivy-package-XXXXXX";
  JobDirectory directory;
  directory.path = mkdtemp(name);
  Environment environment;
  ASSERT_TRUE(add_python_hook(environment, "/installed/hook", directory));
  EXPECT_EQ(*find_variable(environment, "PYTHONPATH"), "/installed/hook");
  EXPECT_TRUE(std::filesystem::is_empty(directory.path));
  environment.clear();
  ASSERT_TRUE(add_python_hook(environment, "", directory));
  EXPECT_EQ(*find_variable(environment, "PYTHONPATH"), directory.path + "/python");
  const auto text_of = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string written = text_of(directory.path + "/python/sitecustomize.py");
  EXPECT_FALSE(written.empty());
  EXPECT_EQ(written, text_of(IVY_SOURCE "/agent/node/workers/sitecustomize.py"));
  std::filesystem::remove_all(directory.path);
}

TEST(OwnNcclProfiler, IsTakenUnlessTheUserHasAnotherOrWantsNone) {
  char name[] = "/tmp/ivy-package-XXXXXX";
  const std::filesystem::path root = mkdtemp(name);
  std::filesystem::create_directories(root / "bin");
  EXPECT_EQ(own_nccl_profiler(root / "bin"), "");
  std::ofstream(root / "bin/libivy_nccl_profiler.so") << "x";
  EXPECT_EQ(own_nccl_profiler(root / "bin"), (root / "bin/libivy_nccl_profiler.so").string());
  std::filesystem::remove_all(root);
  Environment environment;
  add_nccl_profiler(environment, "");
  EXPECT_EQ(find_variable(environment, "NCCL_PROFILER_PLUGIN"), nullptr);
  set_variable(environment, "IVY_NCCL_PROFILER", "off");
  add_nccl_profiler(environment, "/a.so");
  EXPECT_EQ(find_variable(environment, "NCCL_PROFILER_PLUGIN"), nullptr);
  set_variable(environment, "IVY_NCCL_PROFILER", "kernels");
  add_nccl_profiler(environment, "/a.so");
  EXPECT_EQ(*find_variable(environment, "NCCL_PROFILER_PLUGIN"), "/a.so");
  add_nccl_profiler(environment, "/b.so");
  EXPECT_EQ(*find_variable(environment, "NCCL_PROFILER_PLUGIN"), "/a.so")
      << "the user's own setting";
}

TEST(OwnPackage, ProgramDirectoryIsThatOfThisTest) {
  EXPECT_TRUE(std::filesystem::is_directory(program_directory()));
}

}  // namespace
}  // namespace ivy
