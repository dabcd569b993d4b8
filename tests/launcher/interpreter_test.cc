// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/interpreter.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace ivy {
namespace {

using Words = std::vector<std::string>;

class InterpreterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ivy-interpreter-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string install(const std::string& path) {
    const std::filesystem::path file = root_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << "#!/bin/sh\n";
    chmod(file.c_str(), 0755);
    return file;
  }
  Words candidates(const Environment& more = {}) {
    Environment caller = {{"PATH", root_ + "/none:" + root_ + "/bin"}};
    caller.insert(caller.end(), more.begin(), more.end());
    return interpreter_candidates(options_, caller);
  }
  Options options_;
  std::string root_;
};

TEST_F(InterpreterTest, FindsTheFirstPythonsInThePath) {
  const std::string python = install("bin/python");
  EXPECT_EQ(candidates(), Words{python});
  const std::string python3 = install("bin/python3");
  EXPECT_EQ(candidates(), (Words{python3, python}));
}

// Bare names: each host reports where it searched, instead of "no interpreter was requested".
TEST_F(InterpreterTest, FallsBackToCommonNames) {
  EXPECT_EQ(candidates(), (Words{"python3", "python"}));
}

TEST_F(InterpreterTest, PrefersAnEnvironmentToThePath) {
  const std::string python3 = install("bin/python3");
  const std::string own = install("venv/bin/python");
  EXPECT_EQ(candidates({{"VIRTUAL_ENV", root_ + "/venv"}}), (Words{own, python3}));
  EXPECT_EQ(candidates({{"CONDA_PREFIX", root_ + "/venv"}}), (Words{own, python3}));
  EXPECT_EQ(candidates({{"VIRTUAL_ENV", root_ + "/gone"}}), Words{python3});
}

TEST_F(InterpreterTest, RemovesTheEnvironmentFromThePath) {
  EXPECT_EQ(path_without_environment({{"PATH", "/v/bin:/usr/bin:/c/bin:/v/bin/x"},
                                      {"VIRTUAL_ENV", "/v"},
                                      {"CONDA_PREFIX", "/c"}}),
            "/usr/bin:/v/bin/x");
  EXPECT_EQ(path_without_environment({{"PATH", "/usr/bin"}, {"VIRTUAL_ENV", ""}}), "/usr/bin");
  EXPECT_EQ(path_without_environment({}), "");
}

TEST_F(InterpreterTest, PutsIvyrunsOwnEnvironmentLast) {
  const std::string own = install("none/python3");
  const std::string python3 = install("bin/python3");
  const auto found = [&] {
    return interpreter_candidates(options_, {{"PATH", root_ + "/none:" + root_ + "/bin"}},
                                  root_ + "/none");
  };
  // A directory with ivyrun that is no virtual environment is an ordinary installation.
  EXPECT_EQ(found(), Words{own});
  install("pyvenv.cfg");
  install("lib/python3.11/site-packages/ivyrun/__init__.py");
  install("lib/python3.11/site-packages/pip/__init__.py");
  EXPECT_EQ(found(), (Words{python3, own}));
  // Other packages show that the environment is the user's.
  install("lib/python3.11/site-packages/torch/__init__.py");
  EXPECT_EQ(found(), Words{own});
}

TEST_F(InterpreterTest, UsesOnlyAGivenInterpreter) {
  const std::string python3 = install("bin/python3");
  const std::string other = install("bin/python3.9");
  EXPECT_EQ(candidates({{"IVY_PYTHON", "python3.9"}}), Words{other});
  EXPECT_EQ(candidates({{"IVY_PYTHON", ""}}), Words{python3});
  options_.python = "/opt/python";
  EXPECT_EQ(candidates({{"IVY_PYTHON", "python3.9"}}), Words{"/opt/python"});
  options_.python = "pypy";
  EXPECT_EQ(candidates(), Words{"pypy"});
}

}  // namespace
}  // namespace ivy
