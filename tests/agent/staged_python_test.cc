// SPDX-License-Identifier: Apache-2.0
#include "agent/node/facts/staged_python.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "proto/os/files.h"

namespace ivy {
namespace {

namespace fs = std::filesystem;

class StagedPythonTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/staged.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    top_ = pattern;
    fs::create_directories(top_ + "/env/bin");
    fs::create_directories(top_ + "/base/bin");
    fs::copy_file("/bin/true", top_ + "/base/bin/python3.11");
    utsname system{};
    uname(&system);
    machine_ = system.machine;
    description_.set_prefix("/home/me/.venv");
    description_.set_home(top_ + "/base/bin");
    description_.set_version("3.11.2");
  }
  void TearDown() override { fs::remove_all(top_); }

  Result<void> prepare() {
    EXPECT_TRUE(overwrite(top_ + "/env/.ivyrun-environment", description_.SerializeAsString()));
    const Result<void> fits = check_requirements(description_, !python_.empty(), {"/nothing", ""});
    if (!fits.ok()) return fits;
    return prepare_environment(top_ + "/env", python_, {"/nothing", ""});
  }
  std::string content(const std::string& path) {
    return read_file(top_ + "/env/" + path, 1 << 20).value_or("(missing)");
  }

  std::string top_, machine_;
  StagedPython description_;
  std::string python_;
};

TEST_F(StagedPythonTest, LinksTheEnvironmentToThePythonOfThisHost) {
  ASSERT_TRUE(prepare().ok());
  EXPECT_EQ(fs::read_symlink(top_ + "/env/bin/python"), top_ + "/base/bin/python3.11");
  EXPECT_EQ(fs::read_symlink(top_ + "/env/bin/python3"), "python");
  EXPECT_EQ(fs::read_symlink(top_ + "/env/bin/python3.11"), "python");
  EXPECT_EQ(content("pyvenv.cfg"), "home = " + top_ +
                                       "/base/bin\ninclude-system-site-packages = false\n"
                                       "version = 3.11.2\n");
}

TEST_F(StagedPythonTest, PrefersThePythonThatWasSent) {
  fs::create_directories(top_ + "/sent/bin");
  fs::copy_file("/bin/true", top_ + "/sent/bin/python3.11");
  python_ = top_ + "/sent";
  ASSERT_TRUE(prepare().ok());
  EXPECT_EQ(fs::read_symlink(top_ + "/env/bin/python"), top_ + "/sent/bin/python3.11");
}

TEST_F(StagedPythonTest, ReplacesThePathInTexts) {
  ASSERT_TRUE(overwrite(top_ + "/env/bin/activate", "VIRTUAL_ENV=\"/home/me/.venv\"\n"));
  ASSERT_EQ(chmod((top_ + "/env/bin/activate").c_str(), 0755), 0);
  description_.add_texts("bin/activate");
  description_.add_texts("bin/gone");
  ASSERT_TRUE(prepare().ok());
  EXPECT_EQ(content("bin/activate"), "VIRTUAL_ENV=\"" + top_ + "/env\"\n");
  EXPECT_EQ(fs::status(top_ + "/env/bin/activate").permissions(), fs::perms{0755});
}

TEST_F(StagedPythonTest, DoesNothingForAPreparedEnvironment) {
  ASSERT_TRUE(prepare().ok());
  ASSERT_TRUE(overwrite(top_ + "/env/pyvenv.cfg", "changed"));
  ASSERT_TRUE(prepare().ok());
  EXPECT_EQ(content("pyvenv.cfg"), "changed");
}

TEST_F(StagedPythonTest, RejectsAHostWithoutThatPython) {
  description_.set_version("3.99.1");
  const Result<void> result = prepare();
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("needs Python 3.99 (/home/me/.venv/pyvenv.cfg)"),
            std::string::npos)
      << result.error().message;
  EXPECT_NE(result.error().fix.find("uv python install 3.99"), std::string::npos);
}

TEST_F(StagedPythonTest, RejectsFilesOfAnotherArchitecture) {
  description_.set_compiled_file("lib/x.so");
  description_.set_architecture(machine_);
  EXPECT_TRUE(prepare().ok());
  description_.set_architecture("sparc64");
  const Result<void> result = prepare();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message,
            "the environment has files compiled for sparc64, but this host "
            "is " +
                machine_ + ": lib/x.so");
}

TEST_F(StagedPythonTest, LeavesCondaEnvironmentsTheirPython) {
  description_.set_is_conda(true);
  std::string library("\0/home/me/.venv/lib\0\0\0", 23);
  library += std::string(300, '\0') + "end";
  ASSERT_TRUE(overwrite(top_ + "/env/libx.so", library));
  StagedPython::Binary& binary = *description_.add_binaries();
  binary.set_path("libx.so");
  binary.set_placeholder_length(255);
  ASSERT_TRUE(prepare().ok());
  EXPECT_FALSE(fs::exists(top_ + "/env/pyvenv.cfg"));
  EXPECT_EQ(content("libx.so").size(), library.size());
  EXPECT_EQ(content("libx.so").substr(1).c_str(), top_ + "/env/lib");
}

TEST(FindBasePython, SkipsEnvironmentsAndScripts) {
  std::string top = testing::TempDir() + "/pythons.XXXXXX";
  ASSERT_NE(mkdtemp(top.data()), nullptr);
  for (const char* name : {"venv", "shims", "good", "home/.pyenv/versions/3.98.1"})
    fs::create_directories(top + "/" + name + "/bin");
  fs::copy_file("/bin/true", top + "/venv/bin/python3.99");
  ASSERT_TRUE(overwrite(top + "/venv/pyvenv.cfg", ""));
  ASSERT_TRUE(overwrite(top + "/shims/bin/python3.99", "#!/bin/sh\n"));
  chmod((top + "/shims/bin/python3.99").c_str(), 0755);
  fs::copy_file("/bin/true", top + "/good/bin/python3.99");
  fs::copy_file("/bin/true", top + "/home/.pyenv/versions/3.98.1/bin/python3.98");
  const PythonSearch search{top + "/venv/bin:" + top + "/shims/bin:" + top + "/good/bin",
                            top + "/home"};
  EXPECT_EQ(find_base_python("3.99", "/gone", search), top + "/good/bin");
  EXPECT_EQ(find_base_python("3.98", "", search), top + "/home/.pyenv/versions/3.98.1/bin");
  EXPECT_EQ(find_base_python("3.97", "", search), "");
  fs::remove_all(top);
}

TEST(PrefixReplacement, ReplacesEveryOccurrenceInTexts) {
  EXPECT_EQ(with_text_prefix("/a/b:/a/c /x", "/a", "/long/path"), "/long/path/b:/long/path/c /x");
  EXPECT_EQ(with_text_prefix("nothing", "/a", "/b"), "nothing");
}

TEST(PrefixReplacement, KeepsTheLengthOfBinaries) {
  const std::string padding(20, '\0');
  const std::string original = "head\1/old/lib:/old/x" + padding + "\2tail";
  std::string longer = original;
  ASSERT_TRUE(replace_binary_prefix(longer, "/old", "/newer/one", 16));
  EXPECT_EQ(longer.size(), original.size());
  EXPECT_EQ(std::string(longer.c_str()), "head\1/newer/one/lib:/newer/one/x");
  EXPECT_TRUE(longer.ends_with("\2tail"));
  std::string shorter = original;
  ASSERT_TRUE(replace_binary_prefix(shorter, "/old", "/n", 16));
  EXPECT_EQ(std::string(shorter.c_str()), "head\1/n/lib:/n/x");
  EXPECT_EQ(shorter.size(), original.size());
}

TEST(PrefixReplacement, RejectsPathsWithoutRoom) {
  std::string bytes("x/old/lib\0\0y", 12);
  const std::string original = bytes;
  EXPECT_FALSE(replace_binary_prefix(bytes, "/old", "/longer", 16)) << "only one NUL is free";
  EXPECT_FALSE(replace_binary_prefix(bytes, "/old", "/longer", 6)) << "longer than the placeholder";
  EXPECT_EQ(bytes, original);
  EXPECT_TRUE(replace_binary_prefix(bytes, "/old", "/olde", 16));
}

}  // namespace
}  // namespace ivy
