// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/python_command.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ivy {
namespace {

using Words = std::vector<std::string>;

Words options_of(const Words& arguments) {
  const auto options = python_options(arguments);
  return options.ok() ? *options : Words{options.error().message};
}

TEST(PythonCommand, FindsTheProgramBehindTheOptions) {
  EXPECT_EQ(options_of({"/usr/bin/python3", "-u", "train.py", "-S"}),
            (Words{"/usr/bin/python3", "-u"}));
  EXPECT_EQ(options_of({"python3", "-u", "-m", "pkg.train"}), (Words{"python3", "-u"}));
  EXPECT_EQ(options_of({"python3", "-Bum", "pkg"}), (Words{"python3", "-Bu"}));
  EXPECT_EQ(options_of({"python3", "-c", "print()"}), (Words{"python3"}));
}

TEST(PythonCommand, KeepsOptionsWithValues) {
  EXPECT_EQ(options_of({"python", "-X", "dev", "-Werror", "-OW", "ignore", "a.py"}),
            (Words{"python", "-X", "dev", "-Werror", "-OW", "ignore"}));
}

TEST(PythonCommand, RejectsOptionsThatSkipSitecustomize) {
  EXPECT_TRUE(options_of({"python3", "-I", "a.py"}).front().starts_with("use python -I"));
  EXPECT_TRUE(options_of({"python3", "-uS", "a.py"}).front().starts_with("use python -S"));
}

TEST(PythonCommand, RejectsCommandsWithoutAProgramFile) {
  EXPECT_EQ(options_of({"python3"}).front(), "read their program from standard input");
  EXPECT_EQ(options_of({"python3", "-"}).front(), "read their program from standard input");
  EXPECT_EQ(options_of({"bash", "a.sh"}).front(), "run a program that is not Python");
}

TEST(PythonCommand, KnowsNamesOfInterpreters) {
  EXPECT_TRUE(is_python_name("/opt/bin/python3.12"));
  EXPECT_TRUE(is_python_name("python"));
  EXPECT_FALSE(is_python_name("python-config"));
  EXPECT_FALSE(is_python_name("pytest"));
}

}  // namespace
}  // namespace ivy
